#include <refrain/autograd/ops/activation.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>

using namespace refrain;
using namespace refrain::testing;

namespace {

Tensor gelu_erf(const Tensor& x) { return gelu(x); }
Tensor gelu_tanh(const Tensor& x) { return gelu(x, GeluForm::tanh); }

}  // namespace

TEST_CASE("activations: gradients for views and sizes 0 and 1") {
  using F = Tensor (*)(const Tensor&);
  const std::pair<const char*, F> functions[] = {{"gelu erf", gelu_erf}, {"gelu tanh", gelu_tanh}, {"silu", silu},
                                                 {"relu", relu},         {"tanh", tanh},           {"sigmoid", sigmoid}};
  for (const auto& [name, f] : functions) {
    for (const Shape& shape : {Shape{}, Shape{0, 4}, Shape{1}, Shape{33}, Shape{3, 5}}) {
      Tensor x = test_values(shape);
      for (std::int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] *= 4;
      if (shape.size() == 2) x = view::transpose(x, 0, 1);
      INFO(name << " " << shape);
      gradcheck([f = f](std::vector<Tensor> v) { return f(v[0]); }, {x});
    }
  }
}

TEST_CASE("activations: known values") {
  const Tensor x = from_values(std::vector<double>{-1, 0, 2}, {3});
  const auto at = [](const Tensor& t, std::size_t i) { return t.to_vector<double>()[i]; };
  CHECK(at(gelu(x), 0) == Approx(-0.15865525393145707));
  CHECK(at(gelu(x), 2) == Approx(1.9544997361036416));
  CHECK(at(gelu(x, GeluForm::tanh), 2) == Approx(1.954597694087775));
  CHECK(at(silu(x), 2) == Approx(1.7615941559557646));
  CHECK(relu(x).to_vector<double>() == std::vector<double>{0, 0, 2});
}

TEST_CASE("gelu: its output is rebuilt for the next reader, with the same bits") {
  const Device device = Device::new_cpu();
  const Tensor x = full({1000}, 0.7, DType::f32, device);
  set_requires_grad(x);
  const Tensor y = gelu(gelu(x));
  CHECK(x.storage()->num_saved() == 1);
  CHECK(device.live_bytes(MemoryKind::saved) <= 4000);  // x alone: not the inner gelu's output
  backward(y, {.grad_out = full({1000}, 1, DType::f32, device)});

  const Tensor again = full({1000}, 0.7, DType::f32);
  set_requires_grad(again);
  const Tensor kept = gelu(again);
  const Tensor inner = detach(kept);
  set_requires_grad(inner);
  backward(gelu(inner), {.grad_out = full({1000}, 1, DType::f32)});
  backward(kept, {.grad_out = grad_of(inner)});
  check_same_bits(grad_of(x), grad_of(again));
}
