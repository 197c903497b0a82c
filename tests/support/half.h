// What a result stored in f16 or bf16 may differ by, and comparisons with that.
#pragma once

#include <refrain/kernels/convert/convert.h>
#include <refrain/tests/support/values.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace refrain {

inline constexpr DType kHalves[] = {DType::f16, DType::bf16};

// The relative change by one rounding to nearest, at most: half the distance of 1 and its upper neighbour.
inline double roundoff_of(DType dtype) {
  return dtype == DType::f16 ? 0x1p-11 : dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f32 ? 0x1p-24 : 0x1p-53;
}
// The absolute change where values are too small for that: half the least f16; the least normal f32 for bf16 and f32, since
// kernels flush what is below to 0.
inline double underflow_of(DType dtype) { return dtype == DType::f16 ? 0x1p-25 : dtype == DType::f64 ? 0x1p-1022 : 0x1p-126; }
inline double largest_of(DType dtype) {
  return dtype == DType::f16 ? 65504 : dtype == DType::bf16 ? 0x1.fep127 : dtype == DType::f32 ? 0x1.fffffep127 : 0x1.fffffffffffffp1023;
}

// x as another dtype, by the kernel.
inline Tensor as(const Tensor& x, DType dtype) {
  const Tensor out = empty(x.shape(), dtype, x.device());
  launch(Convert{.x = x, .out = out});
  return out;
}

// `exact` rounded once to the dtype, by the definition: to the nearest multiple of a power of two, ties to even.
inline double rounded_to(double exact, DType dtype) {
  if (exact == 0 || std::isnan(exact) || std::isinf(exact)) return exact;
  const int digits = dtype == DType::f16 ? 11 : dtype == DType::bf16 ? 8 : 24, least = dtype == DType::f16 ? -14 : -126;
  int exponent;
  std::frexp(exact, &exponent);
  const double step = std::ldexp(1.0, std::max(exponent - 1, least) - (digits - 1)), result = std::nearbyint(exact / step) * step;
  return std::abs(result) > largest_of(dtype) ? std::copysign(HUGE_VAL, exact) : result;
}

// The 65,536 values of a 16-bit type, infinities and NaN included.
inline Tensor all_values(DType half) {
  const Tensor x = empty({65536}, half);
  for (std::size_t i = 0; i < 65536; ++i) reinterpret_cast<std::uint16_t*>(x.raw_data())[i] = std::uint16_t(i);
  return x;
}

// How many elements are farther from `expected` than bound(i, expected[i]) allows. An infinite bound allows
// anything, otherwise a NaN must meet a NaN. An infinity is
// allowed where a value that the bound allows rounds to it.
template <class Bound>
std::int64_t num_outside(const Tensor& got, const std::vector<double>& expected, Bound&& bound) {
  const std::vector<double> values = got.to_vector<double>();
  REQUIRE(values.size() == expected.size());
  const double overflow = largest_of(got.dtype()) * (1 + roundoff_of(got.dtype()) / 2);
  std::int64_t count = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double v = values[i], e = expected[i], limit = bound(i, e);
    const bool is_overflow = std::isinf(v) && std::signbit(v) == std::signbit(e) && std::abs(e) + limit >= overflow;
    const bool is_good = std::isinf(limit) || (std::isnan(e) ? std::isnan(v) : v == e || is_overflow || std::abs(v - e) <= limit);
    if (!is_good && count++ == 0) UNSCOPED_INFO("element " << i << ": " << v << " is not within " << limit << " of " << e);
  }
  return count;
}

// How many elements differ in a bit; NaNs count as equal.
inline std::int64_t num_different(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  REQUIRE(a.dtype() == b.dtype());
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();  // exact, also of every sign of 0
  std::int64_t count = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const bool is_same = std::isnan(x[i]) ? std::isnan(y[i]) : x[i] == y[i] && std::signbit(x[i]) == std::signbit(y[i]);
    if (!is_same && count++ == 0) UNSCOPED_INFO("element " << i << ": " << x[i] << " differs from " << y[i]);
  }
  return count;
}

}  // namespace refrain
