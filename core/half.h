// IEEE binary16 and bfloat16 as storage types. Conversions round to nearest, ties to even; NaN stays NaN.
#pragma once

#include <bit>
#include <cstdint>

namespace refrain {

namespace half_bits {

constexpr float f16_to_float(std::uint16_t h) {
  const std::uint32_t sign = std::uint32_t(h & 0x8000u) << 16;
  const std::uint32_t exponent = (h >> 10) & 0x1f;
  std::uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0x1f) {  // infinity, or NaN with its payload; quiet bit set as the hardware does
    if (mantissa != 0) mantissa |= 0x200u;
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  }
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  if (mantissa == 0) return std::bit_cast<float>(sign);
  // Subnormal: value = mantissa * 2^-24; normalise by its leading one.
  const int shift = std::countl_zero(mantissa) - 21;
  return std::bit_cast<float>(sign | (std::uint32_t(113 - shift) << 23) | ((mantissa << (13 + shift)) & 0x7fffffu));
}

constexpr std::uint16_t float_to_f16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint16_t sign = std::uint16_t((bits >> 16) & 0x8000u);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return std::uint16_t(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return std::uint16_t(sign | 0x7c00u);  // 65520 and above round to infinity
  if (magnitude >= 0x38800000u) {                                      // normal in f16
    const std::uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return std::uint16_t(sign | ((rounded >> 13) - (112u << 10)));
  }
  if (magnitude < 0x33000000u) return sign;  // below half the least subnormal
  const std::uint32_t exponent = magnitude >> 23;
  const std::uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const std::uint32_t shift = 126u - exponent;  // 14..24: bits that fall off
  const std::uint32_t kept = mantissa >> shift;
  const std::uint32_t lost = mantissa & ((1u << shift) - 1u);
  const std::uint32_t half = 1u << (shift - 1u);
  const bool up = lost > half || (lost == half && (kept & 1u));
  return std::uint16_t(sign | (kept + (up ? 1u : 0u)));
}

constexpr float bf16_to_float(std::uint16_t b) { return std::bit_cast<float>(std::uint32_t(b) << 16); }

constexpr std::uint16_t float_to_bf16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return std::uint16_t((bits >> 16) | 0x40u);
  return std::uint16_t((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace half_bits

struct f16 {
  std::uint16_t bits = 0;
  constexpr f16() = default;
  constexpr explicit f16(float value) : bits(half_bits::float_to_f16(value)) {}
  constexpr explicit operator float() const { return half_bits::f16_to_float(bits); }
};

struct bf16 {
  std::uint16_t bits = 0;
  constexpr bf16() = default;
  constexpr explicit bf16(float value) : bits(half_bits::float_to_bf16(value)) {}
  constexpr explicit operator float() const { return half_bits::bf16_to_float(bits); }
};

}  // namespace refrain
