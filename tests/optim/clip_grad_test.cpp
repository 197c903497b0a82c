// The global gradient norm and the factor of clipping.
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/optim/all.h>
#include <refrain/tests/support/values.h>

#include <limits>

using namespace refrain;

namespace {

Tensor parameter_with_grad(const Tensor& grad) {
  const Tensor p = zeros(grad.shape(), grad.dtype(), grad.device());
  set_requires_grad(p);
  set_grad(p, grad);
  return p;
}

}  // namespace

TEST_CASE("global_grad_norm: over all parameters, those without a gradient count as 0") {
  const Tensor lonely = zeros({5}, DType::f32);
  set_requires_grad(lonely);
  const std::vector<Tensor> parameters{parameter_with_grad(tensor_of({3}, {1}, DType::f32)), lonely,
                                       parameter_with_grad(tensor_of({0, 4}, {2}, DType::f64)),
                                       parameter_with_grad(zeros({0, 3}, DType::f32))};
  CHECK(global_grad_norm(parameters) == 5);
  CHECK(global_grad_norm(std::vector<Tensor>{lonely}) == 0);
  CHECK(global_grad_norm({}) == 0);
}

TEST_CASE("global_grad_norm: neither overflows nor loses small gradients") {
  CHECK(global_grad_norm(std::vector<Tensor>{parameter_with_grad(full({4}, 3e38, DType::f32))}) == Approx(6e38).epsilon(1e-6));
  CHECK(global_grad_norm(std::vector<Tensor>{parameter_with_grad(full({4}, 1e-30, DType::f32))}) == Approx(2e-30).epsilon(1e-6));
}

TEST_CASE("clip_factor: brings the norm to its limit and leaves smaller ones alone") {
  CHECK(clip_factor(5, 1) == 0.2);
  CHECK(clip_factor(1, 1) == 1);
  CHECK(clip_factor(0, 1) == 1);
  CHECK_THROWS_AS(clip_factor(std::numeric_limits<double>::infinity(), 1), NonFinite);
  CHECK_THROWS_AS(clip_factor(std::nan(""), 1), NonFinite);
  CHECK_THROWS_AS(clip_factor(1, 0), InvalidArgument);
}

TEST_CASE("clipping inside the update: the step is that of the clipped gradient") {
  const Tensor p = parameter_with_grad(tensor_of({3, 4}, {2}, DType::f64));
  Sgd optimizer({{.parameters = {p}}});
  const double norm = global_grad_norm(optimizer.parameters());
  CHECK(norm == 5);
  optimizer.step(1, clip_factor(norm, 1));
  CHECK(error_against(p, {-0.6, -0.8}) < 1e-15);
}

TEST_CASE("global_grad_norm: scratch is workspace and gone afterwards; a plan device has no values") {
  const Device device = Device::new_cpu();
  const std::vector<Tensor> parameters{parameter_with_grad(zeros({100000}, DType::f32, device))};
  const std::int64_t before = device.live_bytes();
  CHECK(global_grad_norm(parameters) == 0);
  CHECK(device.live_bytes() == before);
  CHECK(device.ledger().peak_per_kind()[std::size_t(MemoryKind::workspace)] > 0);
  CHECK(global_grad_norm(std::vector<Tensor>{parameter_with_grad(empty({10}, DType::f32, Device::plan()))}) == 0);
}
