// Rounding as devices do it, exactly, from sums and products that a double cannot always hold.
#pragma once

#include <refrain/core/half.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace refrain::emulator::ptx {

enum class Rounding : std::uint8_t { nearest, zero, down, up };

// The double next to hi + lo whose last bit tells that something was cut off: rounding it once more, to at most 50 bits and in
// any mode, gives what rounding hi + lo would. `lo` is what the rounded sum `hi` lost.
inline double round_to_odd(double hi, double lo) {
  if (lo == 0 || !std::isfinite(hi) || !std::isfinite(lo)) return hi;
  auto bits = std::bit_cast<std::uint64_t>(hi);
  if (bits & 1) return hi;
  // Towards zero when lo points there, then the odd neighbour.
  return std::bit_cast<double>((lo > 0) == (hi > 0) ? bits | 1 : bits - 1);
}
inline double add_to_odd(double a, double b) {
  const double sum = a + b, shadow = sum - a;
  return round_to_odd(sum, (a - (sum - shadow)) + (b - shadow));
}
// Of products that fit a double: two f32, f16 or bf16 factors.
inline double multiply_add_to_odd(double a, double b, double c) { return add_to_odd(a * b, c); }

// To f32 from a double that is exact or rounded to odd.
inline float round_f32(double x, Rounding mode) {
  const float nearest = static_cast<float>(x);
  if (mode == Rounding::nearest || std::isnan(x) || double(nearest) == x) return nearest;
  if (std::isinf(x)) return nearest;
  const bool is_above = double(nearest) > x;
  const bool wants_below = mode == Rounding::down || (mode == Rounding::zero && x > 0);
  if (wants_below == is_above) return std::nextafterf(nearest, wants_below ? -INFINITY : INFINITY);
  return nearest;
}

// To 16 bits with `exponent_bits` and `mantissa_bits`, from a double that is exact or rounded to odd.
template <int kExponentBits, int kMantissaBits>
inline std::uint16_t round_16(double x, Rounding mode) {
  constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  constexpr std::uint16_t kInfinity = std::uint16_t(((1 << kExponentBits) - 1) << kMantissaBits);
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return 0x7fff;
  const double magnitude = std::fabs(x);
  if (std::isinf(x)) return std::uint16_t(sign | kInfinity);
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - kBias);
  const double scaled = std::ldexp(magnitude, kMantissaBits - exponent);  // exact
  double kept = std::floor(scaled);
  const double lost = scaled - kept;
  const bool away = mode == Rounding::nearest
                        ? lost > 0.5 || (lost == 0.5 && std::fmod(kept, 2) == 1)
                        : lost > 0 && (mode == Rounding::up ? sign == 0 : mode == Rounding::down && sign != 0);
  if (away) kept += 1;
  // A carry out of the mantissa runs into the exponent, as it should; subnormals have an exponent of 0.
  const int normal = kept >= double(1 << kMantissaBits) ? exponent + kBias - 1 : 0;
  const std::int64_t bits = (std::int64_t(normal) << kMantissaBits) + std::int64_t(kept);
  if (bits < kInfinity) return std::uint16_t(sign | bits);
  const bool to_infinity =
      mode == Rounding::nearest || (mode == Rounding::up && sign == 0) || (mode == Rounding::down && sign != 0);
  return std::uint16_t(sign | (to_infinity ? kInfinity : kInfinity - 1));
}
inline std::uint16_t round_f16(double x, Rounding mode = Rounding::nearest) { return round_16<5, 10>(x, mode); }
inline std::uint16_t round_bf16(double x, Rounding mode = Rounding::nearest) { return round_16<8, 7>(x, mode); }

inline float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.f, x) : x; }

}  // namespace refrain::emulator::ptx
