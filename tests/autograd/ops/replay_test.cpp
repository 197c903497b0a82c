// What holds for every op of the elementwise, activation, reduction, conversion, dropout, concat and view families:
// the same bits from a checkpoint region, and the plan device's forecast of a real run's bytes.
#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/ops/activation.h>
#include <refrain/autograd/ops/concat.h>
#include <refrain/autograd/ops/convert.h>
#include <refrain/autograd/ops/dropout.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

#include <functional>

using namespace refrain;
using namespace refrain::testing;

namespace {

struct Case {
  const char* name;
  std::function<Tensor(const Tensor& x, const Tensor& w)> f;  // x [6, 8] above 0, w [8]
};

const Case kCases[] = {
    {"arithmetic", [](const Tensor& x, const Tensor& w) { return (x + w) * (x - w) / (x * 2.0 + 1.0) - 3.0 / x; }},
    {"scalars", [](const Tensor& x, const Tensor& w) { return exp(1.0 - (x * 0.5 - 1.0) / 2.0) * w; }},
    {"powers", [](const Tensor& x, const Tensor& w) { return pow(x, 1.5) * sqrt(x) + rsqrt(x) * reciprocal(x) + square(w) + abs(-w); }},
    {"waves", [](const Tensor& x, const Tensor& w) { return log(x) * sin(x * w) + cos(x) * sin(exp(w)); }},
    {"activations",
     [](const Tensor& x, const Tensor& w) { return gelu(gelu(x * w), GeluForm::tanh) + silu(relu(x - w)) * tanh(x) * sigmoid(w); }},
    {"rebuilt chain", [](const Tensor& x, const Tensor& w) { return square(gelu(sin(x) * 2.0)) * w; }},
    {"sum", [](const Tensor& x, const Tensor& w) { return sum(x * w, {1}, true) * x + sum(x, {0}) + mean(x) * mean(w); }},
    {"max", [](const Tensor& x, const Tensor& w) { return max(x * w, 1, true).values * x + max(x, 0).values; }},
    {"convert", [](const Tensor& x, const Tensor& w) { return convert(convert(x * w, DType::f64) * 2.0, DType::f32); }},
    {"dropout", [](const Tensor& x, const Tensor& w) { return dropout(square(x), 0.4) * w + stochastic_depth(x, 0.5) * x; }},
    {"dropout_add", [](const Tensor& x, const Tensor& w) { return square(dropout_add(x * w, x, 0.3)); }},
    {"concat",
     [](const Tensor& x, const Tensor& w) {
       return square(concat({x, unsqueeze(w, 0), x * w}, 0));
     }},
    {"views",
     [](const Tensor& x, const Tensor& w) {
       return square(slice(transpose(x, 0, 1), 1, 0, 6, 2)) * unsqueeze(select(x, 0, 2), 1) + unsqueeze(w, 1);
     }},
    {"views of rebuilt values",
     [](const Tensor& x, const Tensor& w) {
       return square(reshape(permute(gelu(x), {1, 0}), {3, 16})) * reshape(expand(square(w), {6, 8}), {3, 16});
     }},
    {"views that save nothing",
     [](const Tensor& x, const Tensor& w) {
       return flatten(contiguous(transpose(x, 0, 1))) + sum(expand(w, {2, 8}));
     }},
    {"where",
     [](const Tensor& x, const Tensor& w) {
       const Tensor condition = empty({6, 1}, DType::boolean, x.device());
       if (condition.has_bytes()) {
         for (int i = 0; i < 6; ++i) condition.data<bool>()[i] = i % 3 == 0;
       }
       return square(where(condition, x * w, w));
     }},
};

Tensor positive(const Shape& shape, int salt, const Device& device) {
  const Tensor t = empty(shape, DType::f32, device);
  if (!device.has_bytes()) return t;
  copy_values(t, test_values(shape, DType::f32, salt));
  for (std::int64_t i = 0; i < t.numel(); ++i) t.data<float>()[i] = 1.5f + t.data<float>()[i];
  return t;
}

enum class Regions { none, one, nested };

std::vector<Tensor> train(const Case& c, Regions regions, const Device& device = Device::cpu()) {
  seed_random(11);
  const Tensor x = positive({6, 8}, 1, device), w = positive({8}, 2, device);
  set_requires_grad(x);
  set_requires_grad(w);
  const auto inner = [f = c.f](const Tensor& a, const Tensor& b) { return f(a, b); };
  const auto outer = [inner](const Tensor& a, const Tensor& b) { return checkpoint(inner, a * 1.25, b) * 0.5; };
  const auto unwrapped = [inner](const Tensor& a, const Tensor& b) { return inner(a * 1.25, b) * 0.5; };
  const Tensor y = regions == Regions::none  ? unwrapped(x, w)
                   : regions == Regions::one ? checkpoint(unwrapped, x, w)
                                             : checkpoint(outer, x, w);
  const Tensor weights = positive(y.shape(), 3, device);
  backward(y, {.grad_out = weights});
  return {y, grad_of(x), grad_of(w)};
}

}  // namespace

TEST_CASE("ops: a region's replay, nested too, gives the plain run's bits") {
  for (const Case& c : kCases) {
    INFO(c.name);
    const std::vector<Tensor> plain = train(c, Regions::none), one = train(c, Regions::one), nested = train(c, Regions::nested);
    for (std::size_t i = 0; i < plain.size(); ++i) {
      check_same_bits(plain[i], one[i]);
      check_same_bits(plain[i], nested[i]);
    }
  }
}

TEST_CASE("ops: the plan device forecasts the real run's peak to the byte") {
  for (const Case& c : kCases) {
    for (Regions regions : {Regions::none, Regions::one, Regions::nested}) {
      const Device real = Device::new_cpu(), plan = Device::plan();
      train(c, regions, real);
      train(c, regions, plan);
      INFO(c.name << " " << int(regions));
      CHECK(plan.peak_bytes() == real.peak_bytes());
      CHECK(plan.live_bytes() == 0);
      CHECK(real.live_bytes() == 0);
      CHECK(tape_size() == 0);
    }
  }
}
