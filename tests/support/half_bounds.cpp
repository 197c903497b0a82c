#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/tests/support/half.h>
#include <refrain/tests/support/half_bounds.h>

#include <algorithm>
#include <cmath>

namespace refrain::testing {

namespace {

// The part of a bound that belongs to an output (-1) or the gradient of an operand.
const std::vector<double>& part(const OpValues& values, int which) { return which < 0 ? values.y : values.grads[std::size_t(which)]; }

// Bounds do not know whose they are; the runner says so while it asks them.
thread_local int current_part = -1;

template <class F>
HalfBound for_elements(F&& f) {
  return [f](const HalfRun& r) {
    const std::vector<double>&exact = part(r.exact, current_part), &magnitudes = part(r.terms, current_part);
    std::vector<double> result(exact.size());
    for (std::size_t i = 0; i < result.size(); ++i) result[i] = f(r, std::abs(exact[i]), std::abs(magnitudes[i]));
    return result;
  };
}

struct Outcome {
  Tensor y;
  std::vector<Tensor> grads;
};

Outcome run(const HalfCase& c, const std::vector<Tensor>& operands, const std::function<Tensor(const Tensor& y)>& grad_out) {
  std::vector<Tensor> leaves;
  for (const Tensor& t : operands) {
    leaves.push_back(t.without_autograd());
    set_requires_grad(leaves.back());
  }
  seed_random(17);  // every run drops the same elements
  Outcome result;
  result.y = c.op(leaves);
  backward(result.y, {.grad_out = grad_out(result.y)});
  for (const Tensor& leaf : leaves) result.grads.push_back(grad_of(leaf));
  return result;
}

OpValues values_of(const Outcome& outcome) {
  OpValues values{outcome.y.to_vector<double>(), {}};
  for (const Tensor& grad : outcome.grads) values.grads.push_back(grad.defined() ? grad.to_vector<double>() : std::vector<double>());
  return values;
}

std::vector<double> magnitudes_of(std::vector<double> values) {
  for (double& v : values) v = std::abs(v);
  return values;
}

double worst_share(const HalfRun& r, const HalfBound& bound, int which, const Tensor& got) {
  const double u = roundoff_of(got.dtype()), underflow = underflow_of(got.dtype());
  const std::vector<double> values = got.to_vector<double>(), &exact = part(r.exact, which);
  current_part = which;
  const std::vector<double> errors = bound(r);
  REQUIRE(values.size() == exact.size());
  REQUIRE(errors.size() == exact.size());
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double share = std::abs(values[i] - exact[i]) / (u * std::abs(exact[i]) + (1 + u) * errors[i] + underflow);
    worst = std::max(worst, std::isnan(share) ? HUGE_VAL : share);
  }
  return worst;
}

}  // namespace

double roundings(double n) { return n * kWide / (1 - n * kWide); }

HalfBound exactly() {
  return for_elements([](const HalfRun&, double, double) { return 0.0; });
}
HalfBound relative(double n) {
  return for_elements([n](const HalfRun&, double y, double) { return roundings(n) * y; });
}
HalfBound terms(double n) {
  return for_elements([n](const HalfRun&, double, double m) { return roundings(n) * m; });
}
HalfBound terms_rounded(double n) {
  return for_elements([n](const HalfRun& r, double, double m) { return (r.u + roundings(n) * (1 + r.u)) * m; });
}
HalfBound of_saved_output(int k, double n) {
  // A factor (1 + d)^k or its inverse, |d| <= u: at most (1 + u/(1 - u))^k.
  return for_elements(
      [k, n](const HalfRun& r, double y, double) { return (std::pow(1 + r.u / (1 - r.u), k) * (1 + roundings(n)) - 1) * y; });
}

std::vector<double> shares_of_bounds(const HalfCase& c, DType half) {
  REQUIRE(c.grads.size() == c.operands.size());
  std::vector<Tensor> rounded, exact, positive;
  HalfRun r;
  r.u = roundoff_of(half);
  std::uint64_t seed = 100;
  for (const HalfOperand& operand : c.operands) {
    rounded.push_back(random_tensor(operand.shape, operand.is_f32 ? DType::f32 : half, ++seed, operand.low, operand.high));
    r.x.push_back(rounded.back().to_vector<double>());
    exact.push_back(tensor_of(r.x.back(), operand.shape, DType::f64));
    positive.push_back(tensor_of(magnitudes_of(r.x.back()), operand.shape, DType::f64));
  }
  Shape shape;
  const Outcome got = run(c, rounded, [&](const Tensor& y) {
    shape = y.shape();
    const Tensor grad_out = random_tensor(shape, y.dtype(), 99);
    r.g = grad_out.to_vector<double>();
    return grad_out;
  });
  r.exact = values_of(run(c, exact, [&](const Tensor&) { return tensor_of(r.g, shape, DType::f64); }));
  r.terms = values_of(run(c, positive, [&](const Tensor&) { return tensor_of(magnitudes_of(r.g), shape, DType::f64); }));
  std::vector<double> shares{worst_share(r, c.y, -1, got.y)};
  for (std::size_t k = 0; k < c.operands.size(); ++k) {
    REQUIRE(got.grads[k].defined());
    CHECK(got.grads[k].dtype() == rounded[k].dtype());
    shares.push_back(worst_share(r, c.grads[k], int(k), got.grads[k]));
  }
  return shares;
}

}  // namespace refrain::testing
