// What forward and backward of an op add to the ledger in 16 bits and in f32: half, but for statistics and the like.
#include <refrain/autograd/all.h>
#include <refrain/tests/support/gradcheck.h>
#include <refrain/tests/support/half.h>

#include <functional>
#include <string>

using namespace refrain;
using testing::test_values;

namespace {

struct Case {
  std::string name;
  Shape x;
  std::function<Tensor(const Tensor& x)> op;
};

Tensor parameter(const Shape& shape, const Tensor& like) { return test_values(shape, like.dtype(), 1); }

const std::vector<Case> kCases = {
    {"add", {64, 512}, [](const Tensor& x) { return x + 1; }},
    {"mul", {64, 512}, [](const Tensor& x) { return x * x; }},
    {"sum", {64, 512}, [](const Tensor& x) { return sum(x, {1}); }},
    {"mean of columns", {64, 512}, [](const Tensor& x) { return mean(x, {0}); }},
    {"exp", {64, 512}, [](const Tensor& x) { return exp(x); }},
    {"gelu", {64, 512}, [](const Tensor& x) { return gelu(x); }},
    {"softmax", {64, 512}, [](const Tensor& x) { return softmax(x, 1); }},
    {"softmax of columns", {64, 512}, [](const Tensor& x) { return softmax(x, 0); }},
    {"log_softmax", {64, 512}, [](const Tensor& x) { return log_softmax(x, 1); }},
    {"cross_entropy", {64, 512}, [](const Tensor& x) { return cross_entropy(x, zeros({64}, DType::i64)); }},
    {"dropout_add", {64, 512}, [](const Tensor& x) { return dropout_add(x, x, 0.5); }},
    {"embedding", {64, 512}, [](const Tensor& x) { return embedding(full({64}, 3, DType::i64), x); }},
    {"layer_norm", {512, 64}, [](const Tensor& x) { return layer_norm(x, parameter({64}, x), parameter({64}, x), 1e-5); }},
    {"batch_norm", {16, 8, 16, 16}, [](const Tensor& x) { return batch_norm2d(x, parameter({8}, x), parameter({8}, x), {}, {}); }},
    {"attention", {2, 128, 4, 32}, [](const Tensor& x) { return attention(x, x, x); }},
    {"attention, packed", {4, 128, 192}, [](const Tensor& x) { return attention_packed(x, 4); }},
    {"attention, one head in halves", {1, 1500, 1, 64}, [](const Tensor& x) { return attention(x, x, x); }},
    {"matmul", {4, 96, 96}, [](const Tensor& x) { return matmul(x, x); }},
    {"linear",
     {512, 128},
     [](const Tensor& x) {
       return linear(x, parameter({64, 128}, x), parameter({64}, x));
     }},
    {"concat",
     {64, 512},
     [](const Tensor& x) {
       return concat({x, x}, 0);
     }},
};

std::int64_t bytes_added(const Case& c, DType dtype) {
  const Tensor x = test_values(c.x, dtype);
  set_requires_grad(x);
  const Device device = Device::cpu();
  device.reset_peak();
  const std::int64_t before = device.live_bytes();
  const Tensor y = c.op(x);
  backward(y, {.grad_out = test_values(y.shape(), y.dtype(), 2)});
  return device.peak_bytes() - before;
}

}  // namespace

TEST_CASE("16-bit ops: no copy of an operand or a gradient is ever made in f32") {
  for (const Case& c : kCases) {
    for (const DType half : kHalves) {
      INFO(c.name << " " << half);
      const std::int64_t numel = numel_of(c.x), wide = bytes_added(c, DType::f32), narrow = bytes_added(c, half);
      // A copy in f32 would be 4 bytes an element. What stays f32 is statistics, a number a row or a channel, and sums of
      // parameter gradients.
      CHECK(narrow <= wide / 2 + numel / 2);
      CHECK(narrow >= wide / 2 - 4096);
    }
  }
}
