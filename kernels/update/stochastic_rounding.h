// Stochastic rounding of f32 to the 16-bit formats, for .cpp files of kernels. A value between the neighbours a < b of the
// format becomes b with probability (v - a) / (b - a), so that a sum of many roundings is right on average however small
// each addend (Gupta et al., "Deep learning with limited numerical precision", 2015).
//
// 16 random bits an element: all of them for bf16, 13 for normal f16 values, which drop that many bits, and for f16's
// subnormals (spacing 2^-24) |v| counts in steps of 2^-40, what is below them cut off. Values of the format never move;
// infinity and NaN stay; what rounds to a finite number to nearest is never made infinite (it saturates at the largest
// finite one), and what rounds to infinity to nearest always does.
#pragma once

#include <refrain/kernels/common/simd_span.h>

namespace refrain::simd {

// One value; `random` is below 2^16. The definition the vectors follow.
inline bf16 round_stochastic(bf16, float value, std::uint32_t random) {
  const bf16 nearest(value);
  if ((nearest.bits & 0x7f80u) == 0x7f80u) return nearest;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), magnitude = ((bits & 0x7fffffffu) + random) >> 16;
  bf16 result;
  result.bits = std::uint16_t((magnitude < 0x7f7fu ? magnitude : 0x7f7fu) | ((bits >> 16) & 0x8000u));
  return result;
}

inline f16 round_stochastic(f16, float value, std::uint32_t random) {
  const f16 nearest(value);
  if ((nearest.bits & 0x7c00u) == 0x7c00u) return nearest;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value), size = bits & 0x7fffffffu;
  const std::uint32_t magnitude = size >= 0x38800000u ? ((size + (random >> 3)) >> 13) - (112u << 10)
                                                      : (std::uint32_t(std::bit_cast<float>(size) * 0x1p40f) + random) >> 16;
  f16 result;
  result.bits = std::uint16_t((magnitude < 0x7bffu ? magnitude : 0x7bffu) | ((bits >> 16) & 0x8000u));
  return result;
}

// Rounds the lanes of v; `random` has 16 bits a lane. The result is in the lower half of each 32-bit lane.
template <class D, class V32 = hn::Vec<hn::Repartition<std::uint32_t, D>>>
HWY_INLINE V32 round_stochastic(bf16, D d, hn::Vec<D> v, V32 random) {
  const hn::Repartition<std::uint32_t, D> d32;
  const V32 bits = hn::BitCast(d32, v), size = hn::And(bits, hn::Set(d32, 0x7fffffffu));
  const V32 sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 0x8000u));
  const V32 finite = hn::Min(hn::ShiftRight<16>(hn::Add(size, random)), hn::Set(d32, 0x7f7fu));
  // From 0x7f7f8000 on to nearest is infinity; NaN keeps the upper half of its payload and is made quiet.
  const V32 nan = hn::Or(hn::ShiftRight<16>(size), hn::Set(d32, 0x40u));
  const V32 other = hn::IfThenElse(hn::Gt(size, hn::Set(d32, 0x7f800000u)), nan, hn::Set(d32, 0x7f80u));
  (void)d;
  return hn::Or(sign, hn::IfThenElse(hn::Lt(size, hn::Set(d32, 0x7f7f8000u)), finite, other));
}

template <class D, class V32 = hn::Vec<hn::Repartition<std::uint32_t, D>>>
HWY_INLINE V32 round_stochastic(f16, D d, hn::Vec<D> v, V32 random) {
  const hn::Repartition<std::uint32_t, D> d32;
  const hn::Repartition<std::int32_t, D> di;
  const V32 bits = hn::BitCast(d32, v), size = hn::And(bits, hn::Set(d32, 0x7fffffffu));
  const V32 sign = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 0x8000u));
  const V32 normal = hn::Sub(hn::ShiftRight<13>(hn::Add(size, hn::ShiftRight<3>(random))), hn::Set(d32, 112u << 10));
  // Lanes that are not subnormal are put to 0 first: their product would not fit an integer.
  const auto is_normal = hn::Gt(size, hn::Set(d32, 0x387fffffu));
  const V32 small = hn::IfThenZeroElse(is_normal, size);
  const V32 steps = hn::BitCast(d32, hn::ConvertTo(di, hn::Mul(hn::BitCast(d, small), hn::Set(d, 0x1p40f))));
  const V32 subnormal = hn::ShiftRight<16>(hn::Add(steps, random));
  const V32 finite = hn::Min(hn::IfThenElse(is_normal, normal, subnormal), hn::Set(d32, 0x7bffu));
  const V32 nan = hn::Or(hn::And(hn::ShiftRight<13>(size), hn::Set(d32, 0x3ffu)), hn::Set(d32, 0x7e00u));
  const V32 other = hn::IfThenElse(hn::Gt(size, hn::Set(d32, 0x7f800000u)), nan, hn::Set(d32, 0x7c00u));
  return hn::Or(sign, hn::IfThenElse(hn::Lt(size, hn::Set(d32, 0x477ff000u)), finite, other));
}

// Stores v, or the lanes of it that `lanes` (simd_span.h) has, rounded with bits shift … shift + 15 of the words.
template <int shift, class D, class S, class L>
HWY_INLINE void store_stochastic(hn::Vec<D> v, D d, S* p, L lanes, const std::uint32_t* words) {
  static_assert(is_half<S> && (shift == 0 || shift == 16));
  const hn::Repartition<std::uint32_t, D> d32;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto word = lanes.load(d32, words);
  const auto random = shift == 0 ? hn::And(word, hn::Set(d32, 0xffffu)) : hn::ShiftRight<16>(word);
  const auto bits = hn::TruncateTo(d16, round_stochastic(S(), d, v, random));
  if constexpr (std::is_same_v<L, AllLanes>) {
    hn::StoreU(bits, d16, reinterpret_cast<std::uint16_t*>(p));
  } else {
    S buffer[hn::MaxLanes(D())];
    hn::StoreU(bits, d16, reinterpret_cast<std::uint16_t*>(buffer));
    std::memcpy(p, buffer, lanes.count * sizeof(S));
  }
}

// out[i] = x[i] rounded with bits shift … shift + 15 of words[i].
template <int shift, class S>
void round_stochastic(const float* x, const std::uint32_t* words, S* out, std::int64_t n) {
  const Tag<float> d;
  for_vectors(d, n, [&](std::int64_t i, auto lanes) HWY_ATTR { store_stochastic<shift>(lanes.load(d, x + i), d, out + i, lanes, words + i); });
}

}  // namespace refrain::simd
