// The tape: gradients, release, errors, announcements.
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/linear.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

using namespace refrain;
using refrain::testing::test_values;

namespace {

Tensor leaf(double value) {
  Tensor t = full({}, value, DType::f64);
  set_requires_grad(t);
  return t;
}

Tensor input(const Shape& shape, double value, const Device& device) {
  KindScope kind(MemoryKind::input);
  return full(shape, value, DType::f64, device);
}

}  // namespace

TEST_CASE("tape: contributions of every use are summed") {
  const Tensor x = leaf(3);
  backward(x * x + x * 2.0 + x);
  CHECK(grad_of(x).item() == 9);
  backward(x * x);
  CHECK(grad_of(x).item() == 15);  // accumulates
  clear_grad(x);
  CHECK_FALSE(grad_of(x).defined());
}

TEST_CASE("tape: nothing is recorded for values that want no gradient") {
  const std::int64_t before = tape_size();
  const Tensor c = full({3}, 2, DType::f64), x = leaf(1);
  const Tensor d = c * c;
  CHECK_FALSE(d.requires_grad());
  {
    NoGradScope no_grad;
    CHECK_FALSE((x * x).requires_grad());
    CHECK_FALSE(is_grad_enabled());
  }
  CHECK(is_grad_enabled());
  CHECK_FALSE((detach(x) * 2.0).requires_grad());
  CHECK(tape_size() == before);
  const Tensor y = x * c;
  CHECK(tape_size() == before + 1);
}

TEST_CASE("tape: records die with the values that need them") {
  const std::int64_t before = tape_size();
  {
    Tensor y = leaf(1);
    for (int i = 0; i < 200000; ++i) y = y + y;  // a long chain must not be destroyed by recursion
    CHECK(tape_size() == before + 200000);
  }
  CHECK(tape_size() == before);
}

TEST_CASE("tape: backward releases what it has read") {
  const Device device = Device::new_cpu();
  const Tensor x = input({1000}, 2, device);
  set_requires_grad(x);
  Tensor loss;
  {
    const Tensor y = x * x;
    const Tensor z = y * y;
    loss = sum(z);
  }
  CHECK(device.live_bytes(MemoryKind::saved) == 8000);  // y; x is the caller's own, z is read by nobody
  backward(loss);
  CHECK(device.live_bytes(MemoryKind::saved) == 0);
  CHECK(device.live_bytes(MemoryKind::gradient) == 8000);
  CHECK(grad_of(x).to_vector<double>() == std::vector<double>(1000, 4 * 8.0));
}

TEST_CASE("tape: going backward twice is refused unless retained, and changes nothing") {
  const Tensor x = leaf(3);
  const Tensor y = x * x;
  const Tensor z = y * y;
  backward(z, {.retain = true});
  CHECK(grad_of(x).item() == 108);
  backward(z);
  CHECK(grad_of(x).item() == 216);
  CHECK_THROWS_WITH(backward(z), Catch::Contains("released by an earlier backward"));
  CHECK_THROWS_AS(backward(y + x), InvalidArgument);  // part of it is gone
  CHECK(grad_of(x).item() == 216);
  backward(x * 2.0);  // the counters are clean
  CHECK(grad_of(x).item() == 218);
}

TEST_CASE("tape: misuse is refused with the reason") {
  const Tensor x = test_values({3});
  CHECK_THROWS_WITH(backward(x), Catch::Contains("depends on no tensor that wants a gradient"));
  set_requires_grad(x);
  CHECK_THROWS_WITH(backward(x * 2.0), Catch::Contains("[3]") && Catch::Contains("no scalar"));
  CHECK_THROWS_WITH(backward(x * 2.0, {.grad_out = full({2}, 1, DType::f64)}), Catch::Contains("got f64 [2]"));
  CHECK_THROWS_WITH(set_requires_grad(x * 2.0), Catch::Contains("result of an op"));
  CHECK_THROWS_WITH(set_requires_grad(full({2}, 1, DType::i64)), Catch::Contains("i64"));
  CHECK_THROWS_AS(set_grad(x, full({2}, 1, DType::f64)), InvalidArgument);
}

TEST_CASE("tape: tensors with and without bytes do not meet in an op") {
  const Tensor planned = empty({2, 3}, DType::f64, Device::plan());
  CHECK_THROWS_WITH(linear(planned, test_values({4, 3}), Tensor()), Catch::Contains("linear") && Catch::Contains("plan(cpu) and cpu"));
  CHECK_THROWS_WITH(planned * test_values({2, 3}), Catch::Contains("plan(cpu) and cpu"));
}

TEST_CASE("tape: a saved value changed in place is an error that names it") {
  const Tensor x = test_values({4});
  set_requires_grad(x);
  const Tensor y = x * 3.0;
  const Tensor z = sum(y * y);
  fill_values(y, 1);
  CHECK_THROWS_WITH(backward(z), Catch::Contains("changed in place"));
  clear_grad(x);
  backward(sum(x * x));  // the tape is usable
  refrain::testing::check_close(grad_of(x), (detach(x) * 2.0), 0);
}

TEST_CASE("tape: gradients that only pass through are never shared between leaves") {
  const Tensor a = test_values({4}), b = test_values({4}, DType::f64, 1);
  set_requires_grad(a);
  set_requires_grad(b);
  backward(sum(a + b));
  backward(sum(a * 2.0));
  CHECK(grad_of(a).to_vector<double>() == std::vector<double>(4, 3));
  CHECK(grad_of(b).to_vector<double>() == std::vector<double>(4, 1));
}

TEST_CASE("tape: each leaf's gradient is announced final exactly once") {
  const Tensor w = leaf(2), unused = leaf(5), frozen = full({}, 1, DType::f64);
  std::vector<std::string> said;
  std::vector<double> grads;
  const auto on_final = [&](const Tensor& t, bool has_grad) {
    said.push_back(is_same(t, w) ? "w" : is_same(t, unused) ? "unused" : "frozen");
    grads.push_back(has_grad ? grad_of(t).item() : -1);
  };
  const Tensor y = w * w * w;
  backward(w * 1.0, {.is_last = false, .leaves = {w, unused, frozen}, .on_final = on_final});
  CHECK(said.empty());
  backward(y, {.leaves = {w, unused, frozen}, .on_final = on_final});
  CHECK(said == std::vector<std::string>{"unused", "w"});
  CHECK(grads == std::vector<double>{-1, 13});
}

TEST_CASE("tape: a leaf that several stages read is summed a stage at a time, and looking at the sum changes no bit") {
  // Contributions of two stages in three rounds: 1, then many that vanish beside it one by one and not together.
  const auto train = [](bool looks) {
    const Tensor w = zeros({}, DType::f32);
    set_requires_grad(w);
    for (int round = 0; round < 3; ++round) {
      Tensor first, last;
      {
        const StageScope stage(0);
        first = mul(w, full({}, 0x1p-24f, DType::f32));
      }
      {
        const StageScope stage(1);
        last = mul(w, full({}, round == 0 ? 1.0f : 0.0f, DType::f32));
      }
      backward(first + last, {.is_last = round == 2});
      if (looks) grad_of(w);
    }
    return grad_of(w).item();
  };
  // Stage 0 adds up to 3 * 2^-24, which rounds up beside 1; one by one each would be lost.
  CHECK(train(false) == 1 + 0x1p-22);
  CHECK(train(true) == train(false));
}

TEST_CASE("tape: frozen weights get no gradient and keep no input") {
  const Device device = Device::new_cpu();
  const Tensor x = input({8, 16}, 1, device), w = input({4, 16}, 1, device);
  set_requires_grad(x);
  const Tensor y = linear(x * 1.0, w, Tensor());
  CHECK(device.live_bytes(MemoryKind::saved) == 0);  // only the weight is read, and that is a caller's tensor
  backward(sum(y));
  CHECK_FALSE(grad_of(w).defined());
  CHECK(grad_of(x).to_vector<double>() == std::vector<double>(128, 4));
}
