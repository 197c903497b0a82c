// One rounding from f64 to any floating type.
#pragma once

#include <refrain/core/dtype.h>

#include <bit>
#include <cmath>
#include <cstdint>

namespace refrain {

// Rounds to float so that a second rounding to 11 bits or fewer gives what one rounding would have: inexact results get
// an odd last bit (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding
// to odd", 2008).
inline float round_to_odd(double value) {
  const float nearest = float(value);
  if (double(nearest) == value || std::isnan(value) || std::isinf(nearest)) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if (bits & 1u) return nearest;
  // The neighbour on value's other side has the odd bit.
  bits += std::abs(double(nearest)) < std::abs(value) ? 1u : ~0u;
  return std::bit_cast<float>(bits);
}

// To nearest, ties to even.
template <class To>
To rounded(double value) {
  if constexpr (is_half<To>)
    return To(round_to_odd(value));
  else
    return To(value);
}

}  // namespace refrain
