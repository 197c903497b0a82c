#include <refrain/autograd/tape.h>
#include <refrain/core/random.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>
#include <refrain/tests/support/values.h>

#include <cmath>
#include <cstring>

namespace refrain::testing {

namespace {

// Uneven, so that a permuted or repeated gradient cannot pass.
Tensor contraction_weights(const Shape& shape) { return test_values(shape, DType::f64, 77); }

double contracted(const Tensor& out) {
  const std::vector<double> values = out.to_vector<double>(), weights = contraction_weights(out.shape()).to_vector<double>();
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * weights[i];
  return sum;
}

}  // namespace

Tensor test_values(const Shape& shape, DType dtype, int salt) {
  const RandomKey key{.seed = 20240511, .call = std::uint32_t(salt), .purpose = RandomPurpose::user};
  const std::int64_t count = numel_of(shape);
  std::vector<double> values;
  for (std::int64_t i = 0; i < count; ++i) values.push_back(2.0 * key.uniform(std::uint64_t(i)) - 1.0);
  return tensor_of(values, shape, dtype);
}

void gradcheck(const TensorFunction& f, const std::vector<Tensor>& inputs, const GradcheckOptions& options) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) {
    leaves.push_back(input.without_autograd());
    if (is_floating(input.dtype())) {
      REQUIRE(input.dtype() == DType::f64);
      set_requires_grad(leaves.back());
    }
  }
  const Tensor out = f(leaves);
  REQUIRE(out.dtype() == DType::f64);
  backward(out, {.grad_out = contraction_weights(out.shape())});
  for (std::size_t k = 0; k < leaves.size(); ++k) {
    if (!is_floating(leaves[k].dtype())) continue;
    const Tensor grad = grad_of(leaves[k]);
    INFO("input " << k << " of shape " << leaves[k].shape());
    REQUIRE((grad.defined() || leaves[k].numel() == 0 || out.numel() == 0));
    const std::vector<double> analytic = grad.defined() ? grad.to_vector<double>() : std::vector<double>(std::size_t(leaves[k].numel()));
    if (grad.defined()) CHECK(grad.shape() == leaves[k].shape());
    // Element i of the view, whatever its strides.
    NoGradScope no_grad;
    const Tensor view = leaves[k].without_autograd();
    for (std::int64_t i = 0; i < view.numel(); ++i) {
      std::int64_t rest = i, at = 0;
      for (int d = view.num_dims() - 1; d >= 0; --d) {
        at += rest % view.shape()[d] * view.strides()[d];
        rest /= view.shape()[d];
      }
      double& element = view.data<double>()[at];
      const double old = element;
      element = old + options.step;
      const double high = contracted(f(leaves));
      element = old - options.step;
      const double low = contracted(f(leaves));
      element = old;
      const double numeric = (high - low) / (2 * options.step);
      INFO("element " << i << ": backward gives " << analytic[std::size_t(i)] << ", differences give " << numeric);
      CHECK(std::abs(analytic[std::size_t(i)] - numeric) <= options.tolerance * (1 + std::abs(numeric)));
    }
  }
}

void check_same_bits(const Tensor& a, const Tensor& b) {
  REQUIRE(a.defined());
  REQUIRE(b.defined());
  REQUIRE(a.shape() == b.shape());
  REQUIRE(a.dtype() == b.dtype());
  const Tensor x = contiguous_values(a.without_autograd()), y = contiguous_values(b.without_autograd());
  const bool same = std::memcmp(x.address(), y.address(), std::size_t(x.bytes())) == 0;
  CHECK(same);
}

void check_close(const Tensor& a, const Tensor& b, double tolerance) {
  REQUIRE(a.defined());
  REQUIRE(b.defined());
  REQUIRE(a.shape() == b.shape());
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool close = std::abs(x[i] - y[i]) <= tolerance * (1 + std::abs(y[i])) || (std::isnan(x[i]) && std::isnan(y[i])) || x[i] == y[i];
    if (!close) FAIL_CHECK("element " << i << " of " << a.shape() << " is " << x[i] << ", expected " << y[i]);
  }
}

}  // namespace refrain::testing
