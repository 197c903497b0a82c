// Transcendental functions over vectors of float or double, accurate to a few units in the last place over the whole
// range, infinities and NaN included. Every lane's result depends on that lane alone. Kernels run with subnormals
// flushed to zero, so results below the least normal number may be 0.
#pragma once

#include <refrain/kernels/common/simd.h>

#include "hwy/contrib/math/math-inl.h"

#include <array>
#include <cmath>
#include <limits>
#include <utility>

namespace refrain::simd {

namespace detail {

template <class T> inline constexpr bool is_single = sizeof(T) == 4;

// c[0] + v·(c[1] + v·(c[2] + …)), unrolled.
template <std::size_t I, class D, class V, class C>
HWY_INLINE V horner_from(D d, V v, const C& c) {
  using T = hn::TFromD<D>;
  if constexpr (I + 1 == std::tuple_size_v<C>) return hn::Set(d, T(c[I]));
  else return hn::MulAdd(horner_from<I + 1>(d, v, c), v, hn::Set(d, T(c[I])));
}
template <class D, class V, class C>
HWY_INLINE V horner(D d, V v, const C& c) { return horner_from<0>(d, v, c); }

// 1/2!, 1/3!, …: (e^r - 1 - r) / r² for |r| <= ln(2)/2. The first term left out is below 0.1 (float) or 0.02 (double)
// of half a unit in the last place.
template <std::size_t N>
constexpr std::array<double, N> exp_coefficients() {
  std::array<double, N> c{};
  double factorial = 1;
  for (std::size_t i = 0; i < N; ++i) c[i] = 1 / (factorial *= double(i + 2));
  return c;
}

// Taylor series of erf(x)/x - 1 in x².
template <std::size_t N>
constexpr std::array<double, N> erf_coefficients() {
  std::array<double, N> c{};
  double scale = 1.1283791670955125739;  // 2/√π
  for (std::size_t i = 0; i < N; ++i) {
    c[i] = scale / double(2 * i + 1);
    scale /= -double(i + 1);
  }
  c[0] = 0.12837916709551257390;
  return c;
}

// exp(x) = 2^n · e^r with r = x - n·ln 2 by Cody and Waite's two-part constant ("Software Manual for the Elementary
// Functions", 1980). n is found by adding 1.5·2^23 (2^52), whose last mantissa bits then hold it.
template <class D, class V = hn::Vec<D>>
struct ExpParts {
  V em1;                                            // e^r - 1
  hn::Vec<hn::RebindToSigned<D>> magic_bits;        // n + bits of the magic number
};

template <class D>
constexpr hn::TFromD<D> exp_magic() { return is_single<hn::TFromD<D>> ? hn::TFromD<D>(0x1.8p23) : hn::TFromD<D>(0x1.8p52); }
template <class D>
constexpr int mantissa_bits() { return is_single<hn::TFromD<D>> ? 23 : 52; }
template <class D>
constexpr hn::TFromD<hn::RebindToSigned<D>> magic_bits_of() {
  using TI = hn::TFromD<hn::RebindToSigned<D>>;
  return is_single<hn::TFromD<D>> ? TI(0x4B400000) : TI(0x4338000000000000);
}

template <class D, class V>
HWY_INLINE ExpParts<D> exp_parts(D d, V x) {
  using T = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
  const V magic = hn::Set(d, exp_magic<D>());
  const V shifted = hn::MulAdd(x, hn::Set(d, T(1.4426950408889634074)), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, is_single<T> ? T(0x1.62e400p-1) : T(6.93147180369123816490e-01)), x);
  r = hn::NegMulAdd(n, hn::Set(d, is_single<T> ? T(0x1.7f7d1cf79abcap-20) : T(1.90821492927058770002e-10)), r);
  static constexpr auto c = exp_coefficients<is_single<T> ? 6 : 12>();
  const V tail = horner(d, r, c);
  return {hn::MulAdd(hn::Mul(r, r), tail, r), hn::BitCast(di, shifted)};
}

// 2^n for n of the normal range.
template <class D, class VI>
HWY_INLINE hn::Vec<D> pow2(D d, VI n_plus_magic) {
  const hn::RebindToSigned<D> di;
  using TI = hn::TFromD<decltype(di)>;
  constexpr int bits = mantissa_bits<D>();
  const TI bias = is_single<hn::TFromD<D>> ? TI(127) : TI(1023);
  return hn::BitCast(d, hn::ShiftLeft<bits>(hn::Add(n_plus_magic, hn::Set(di, TI(bias - magic_bits_of<D>())))));
}

}  // namespace detail

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp(D d, V x) {
  using T = hn::TFromD<D>;
  const hn::RebindToSigned<D> di;
  const auto parts = detail::exp_parts(d, x);
  const V p = hn::Add(parts.em1, hn::Set(d, T(1)));
  // 2^n in two factors, as n reaches beyond the exponents of normal numbers.
  const auto magic = hn::Set(di, detail::magic_bits_of<D>());
  const auto n = hn::Sub(parts.magic_bits, magic);
  const auto half = hn::ShiftRight<1>(n);
  V y = hn::Mul(hn::Mul(p, detail::pow2(d, hn::Add(half, magic))), detail::pow2(d, hn::Add(hn::Sub(n, half), magic)));
  y = hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, detail::is_single<T> ? T(-104) : T(-746))), y);
  return hn::IfThenElse(hn::Gt(x, hn::Set(d, detail::is_single<T> ? T(88.75) : T(709.8))), hn::Inf(d), y);
}

// exp(x) for x <= 0 (or NaN), a third cheaper: results below the least normal number are 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive(D d, V x) {
  using T = hn::TFromD<D>;
  const auto parts = detail::exp_parts(d, x);
  const V scale = detail::pow2(d, parts.magic_bits);
  const V y = hn::MulAdd(parts.em1, scale, scale);
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, detail::is_single<T> ? T(-87.33) : T(-708.3))), y);
}

// exp(x) - 1 for x <= 0 (or NaN).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V expm1_nonpositive(D d, V x) {
  using T = hn::TFromD<D>;
  const auto parts = detail::exp_parts(d, x);
  const V scale = detail::pow2(d, parts.magic_bits);
  const V one = hn::Set(d, T(1));
  const V y = hn::MulAdd(parts.em1, scale, hn::Sub(scale, one));
  return hn::IfThenElse(hn::Lt(x, hn::Set(d, T(-60))), hn::Neg(one), y);
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V log(D d, V x) {
  const V zero = hn::Zero(d), inf = hn::Inf(d);
  V y = hn::Log(d, x);
  y = hn::IfThenElse(hn::Eq(x, inf), inf, y);
  y = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(inf), y);
  return hn::IfThenElse(hn::Or(hn::Lt(x, zero), hn::IsNaN(x)), hn::NaN(d), y);
}

// sinh/cosh through e = exp(-2|x|) - 1: tanh|x| = -e / (2 + e), without cancellation near 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh(D d, V x) {
  using T = hn::TFromD<D>;
  const V e = expm1_nonpositive(d, hn::Mul(hn::Abs(x), hn::Set(d, T(-2))));
  const V magnitude = hn::Div(hn::Neg(e), hn::Add(e, hn::Set(d, T(2))));
  return hn::CopySign(magnitude, x);
}

// 1 / (1 + exp(-x)).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V sigmoid(D d, V x) {
  using T = hn::TFromD<D>;
  const V one = hn::Set(d, T(1));
  const V e = exp_nonpositive(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(e, one));
}

namespace detail {

// Highway's reduction by multiples of π holds to |x| = 39,000; rarer lanes go through the C library one by one.
template <class D, class V, class F>
HWY_INLINE V fix_large_angles(D d, V x, V y, F&& scalar) {
  using T = hn::TFromD<D>;
  const auto good = hn::Le(hn::Abs(x), hn::Set(d, T(30000)));
  if (HWY_LIKELY(hn::AllTrue(d, good))) return y;
  HWY_ALIGN T values[hn::MaxLanes(D())];
  hn::Store(x, d, values);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) values[i] = scalar(values[i]);
  return hn::IfThenElse(good, y, hn::Load(d, values));
}

}  // namespace detail

template <class D, class V = hn::Vec<D>>
HWY_INLINE V sin(D d, V x) {
  return detail::fix_large_angles(d, x, hn::Sin(d, x), [](auto v) { return std::sin(v); });
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V cos(D d, V x) {
  return detail::fix_large_angles(d, x, hn::Cos(d, x), [](auto v) { return std::cos(v); });
}

namespace detail {

// exp(t²)·erfc(t) for t >= 0: w·P(q) with w = 1/(t + k) and q = (t - k)·w in [-1, 1), the substitution of Shepherd and
// Laframboise ("Chebyshev approximation of (1 + 2x) exp(x²) erfc x in 0 <= x < ∞", 1981). P is the polynomial through
// the Chebyshev points of t in [0, 10] (float, relative error 2^-27.5) and [0, 28] (double, 2^-57.2).
template <class D, class V>
HWY_INLINE V erfcx(D d, V t) {
  using T = hn::TFromD<D>;
  static constexpr std::array<double, 10> single = {
      1.0740069064, -0.88339445996, 0.59022841026, -0.3104666589, 0.1195273334, -0.026836217341, -0.0012168890719, 0.003077058,
      -0.000500258783, -0.00033422440617};
  static constexpr std::array<double, 23> dual = {
      1.0959956610004911183, -0.97654872908088212578, 0.77320870226523745861, -0.54085383131322007157, 0.33085158787798812172,
      -0.17401093724044453377, 0.076381514909877719069, -0.026370053332303208479, 0.0061120556492774555825, -0.00028095893558087195305,
      -0.00045505264556396543325, 0.00017681319046764806794, -3.6352966465878490368e-6, -0.000018862135071311392475,
      4.6946199765833127117e-6, 1.4268525380407012033e-6, -8.462915017252110253e-7, -7.90003000732478314e-8, 1.2397022621920956744e-7,
      3.3863100022513686192e-9, -1.5213206819950385169e-8, -6.3690374625306792876e-10, 9.0845417712139066728e-10};
  const V k = hn::Set(d, is_single<T> ? T(3) : T(4));
  const V w = hn::Div(hn::Set(d, T(1)), hn::Add(t, k));
  const V q = hn::Mul(hn::Sub(t, k), w);
  if constexpr (is_single<T>) return hn::Mul(w, horner(d, q, single));
  else return hn::Mul(w, horner(d, q, dual));
}

}  // namespace detail

// Area of the standard normal distribution left of x, and its density at x. Both keep their relative accuracy in the
// tails, which 0.5·(1 + erf(x/√2)) does not.
template <class D, class V = hn::Vec<D>>
struct Normal {
  V cdf, density;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE Normal<D> normal(D d, V x) {
  using T = hn::TFromD<D>;
  const V limit = hn::Set(d, T(40)), half = hn::Set(d, T(0.5));
  V a = hn::Abs(x);
  a = hn::IfThenElse(hn::Gt(a, limit), limit, a);  // both tails are 0 there; keeps NaN
  // exp(-x²/2), with the rounding error of x²/2 made good.
  const V half_a = hn::Mul(half, a);
  const V square = hn::Mul(half_a, a);
  const V error = hn::MulSub(half_a, a, square);
  V g = exp_nonpositive(d, hn::Neg(square));
  g = hn::NegMulAdd(g, error, g);
  const V tail = hn::Mul(hn::Mul(half, g), detail::erfcx(d, hn::Mul(a, hn::Set(d, T(0.70710678118654752440)))));
  const V cdf = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(hn::Set(d, T(1)), tail));
  return {cdf, hn::Mul(g, hn::Set(d, T(0.39894228040143267794)))};
}

// erf by its Taylor series to |x| = 0.75, by 1 - erfc beyond.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V erf(D d, V x) {
  using T = hn::TFromD<D>;
  const V limit = hn::Set(d, T(20)), one = hn::Set(d, T(1));
  static constexpr auto c = detail::erf_coefficients<detail::is_single<T> ? 9 : 16>();
  V a = hn::Abs(x);
  a = hn::IfThenElse(hn::Gt(a, limit), limit, a);
  const V square = hn::Mul(a, a);
  const V near = hn::MulAdd(a, detail::horner(d, square, c), a);
  const V error = hn::MulSub(a, a, square);
  V g = exp_nonpositive(d, hn::Neg(square));
  g = hn::NegMulAdd(g, error, g);
  const V far = hn::NegMulAdd(g, detail::erfcx(d, a), one);
  return hn::CopySign(hn::IfThenElse(hn::Lt(a, hn::Set(d, T(0.75))), near, far), x);
}

}  // namespace refrain::simd
