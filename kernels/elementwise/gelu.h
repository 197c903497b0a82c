// GELU (both forms) and SiLU over vectors, and their derivatives. Large |x| is bounded first, so that -inf gives 0 and
// inf gives inf instead of NaN.
#pragma once

#include <refrain/kernels/common/simd_math.h>

namespace refrain::simd {

namespace detail {

// x bounded from below by -limit; NaN stays.
template <class D, class V>
HWY_INLINE V bounded_below(D d, V x, double limit) {
  const V low = hn::Set(d, hn::TFromD<D>(-limit));
  return hn::IfThenElse(hn::Lt(x, low), low, x);
}

template <class D, class V>
HWY_INLINE V bounded(D d, V x, double limit) {
  const V high = hn::Set(d, hn::TFromD<D>(limit));
  return hn::IfThenElse(hn::Gt(x, high), high, bounded_below(d, x, limit));
}

// √(2/π)·(x + 0.044715·x³), doubled: (1 + tanh(z))/2 = sigmoid(2z), which keeps its accuracy in the left tail.
template <class D, class V>
HWY_INLINE V gelu_tanh_argument(D d, V x) {
  using T = hn::TFromD<D>;
  const V cubic =
      hn::MulAdd(hn::Mul(x, x), hn::Set(d, T(2 * 0.79788456080286535588 * 0.044715)), hn::Set(d, T(2 * 0.79788456080286535588)));
  return hn::Mul(x, cubic);
}

}  // namespace detail

template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_erf(D d, V x) {
  return hn::Mul(detail::bounded_below(d, x, 40), normal(d, x).cdf);
}

// Φ(x) + x·φ(x).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_erf_derivative(D d, V x) {
  const auto [cdf, density] = normal(d, x);
  return hn::MulAdd(detail::bounded(d, x, 40), density, cdf);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_tanh(D d, V x) {
  const V bounded = detail::bounded_below(d, x, 40);
  return hn::Mul(bounded, sigmoid(d, detail::gelu_tanh_argument(d, bounded)));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V gelu_tanh_derivative(D d, V x) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T(1));
  const V b = detail::bounded(d, x, 40);
  const V s = sigmoid(d, detail::gelu_tanh_argument(d, b));
  const V slope =
      hn::MulAdd(hn::Mul(b, b), hn::Set(d, T(6 * 0.79788456080286535588 * 0.044715)), hn::Set(d, T(2 * 0.79788456080286535588)));
  return hn::MulAdd(hn::Mul(hn::Mul(b, s), hn::Sub(one, s)), slope, s);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V silu(D d, V x) {
  return hn::Mul(detail::bounded_below(d, x, 800), sigmoid(d, x));
}

// s + x·s·(1 - s) with s = sigmoid(x).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V silu_derivative(D d, V x) {
  using T = hn::TFromD<D>;
  const V b = detail::bounded(d, x, 800);
  const V s = sigmoid(d, b);
  return hn::MulAdd(hn::Mul(b, s), hn::Sub(hn::Set(d, T(1)), s), s);
}

}  // namespace refrain::simd
