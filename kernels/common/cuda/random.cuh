// The random numbers of core/random.h on the device, word for word, and stochastic rounding as kernels/update/
// stochastic_rounding.h defines it.
#pragma once

#include <refrain/core/random.h>
#include <refrain/kernels/common/cuda/types.cuh>

namespace refrain::cuda {

struct RandomBlock {
  std::uint32_t words[4];
};

// One stream: element i is word i % 4 of block i / 4. Made on the host, passed by value.
struct RandomStream {
  std::uint32_t key0, key1, counter1, counter2, counter3;

  RandomStream() = default;
  explicit RandomStream(const RandomKey& key) : key0(std::uint32_t(key.seed)), key1(std::uint32_t(key.seed >> 32)) {
    const auto counter = key.counter(0);
    counter1 = counter[1], counter2 = counter[2], counter3 = counter[3];
  }

  __device__ __forceinline__ RandomBlock block(std::uint64_t index) const {
    std::uint32_t c0 = std::uint32_t(index), c1 = std::uint32_t(index >> 32) | counter1, c2 = counter2, c3 = counter3;
    std::uint32_t k0 = key0, k1 = key1;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const std::uint32_t high_a = __umulhi(0xD2511F53u, c0), low_a = 0xD2511F53u * c0;
      const std::uint32_t high_b = __umulhi(0xCD9E8D57u, c2), low_b = 0xCD9E8D57u * c2;
      c0 = high_b ^ c1 ^ k0;
      c1 = low_b;
      c2 = high_a ^ c3 ^ k1;
      c3 = low_a;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
  }

  __device__ __forceinline__ std::uint32_t word(std::uint64_t element) const {
    const RandomBlock b = block(element / 4);
    const std::uint32_t at = std::uint32_t(element % 4);
    const std::uint32_t low = at & 1 ? b.words[1] : b.words[0], high = at & 1 ? b.words[3] : b.words[2];
    return at & 2 ? high : low;
  }

  // Words of kCount neighbours, drawn a block at a time: one block more than kCount / 4 where `first` is inside a block.
  template <int kCount>
  __device__ __forceinline__ void words(std::uint64_t first, std::uint32_t (&to)[kCount]) const {
    if constexpr (kCount < 4) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) to[i] = word(first + std::uint64_t(i));
    } else {
      static_assert(kCount % 4 == 0);
      const std::uint32_t skip = std::uint32_t(first % 4);
      std::uint64_t index = first / 4;
      RandomBlock now = block(index);
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        if (skip == 0) {
#pragma unroll
          for (int j = 0; j < 4; ++j) to[i + j] = now.words[j];
          if (i + 4 < kCount) now = block(++index);
        } else {
          const RandomBlock next = block(++index);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const std::uint32_t a = now.words[j];
            // Word skip + j of the eight: `skip` differs by launch, so all three are selects.
            const std::uint32_t by1 = j < 3 ? now.words[(j + 1) % 4] : next.words[0];
            const std::uint32_t by2 = j < 2 ? now.words[(j + 2) % 4] : next.words[(j + 2) % 4];
            const std::uint32_t by3 = j < 1 ? now.words[(j + 3) % 4] : next.words[(j + 3) % 4];
            to[i + j] = skip == 1 ? by1 : skip == 2 ? by2 : skip == 3 ? by3 : a;
          }
          now = next;
        }
      }
    }
  }

  // Uniform in [0, 1), 24 bits.
  __device__ __forceinline__ static float uniform(std::uint32_t word) { return float(word >> 8) * 0x1p-24f; }
};

// A value between two neighbours of the format becomes the farther from zero with the probability that is right on average;
// `random` is below 2^16. What rounds to infinity to nearest, infinities and NaN are rounded to nearest.
__device__ __forceinline__ bfloat round_stochastic(bfloat, float value, std::uint32_t random) {
  const std::uint32_t bits = __float_as_uint(value), size = bits & 0x7fffffffu;
  std::uint32_t magnitude = min((size + random) >> 16, 0x7f7fu);
  if (size >= 0x7f7f8000u) magnitude = size > 0x7f800000u ? (size >> 16) | 0x40u : 0x7f80u;
  return __ushort_as_bfloat16(static_cast<unsigned short>(magnitude | ((bits >> 16) & 0x8000u)));
}

__device__ __forceinline__ half round_stochastic(half, float value, std::uint32_t random) {
  const std::uint32_t bits = __float_as_uint(value), size = bits & 0x7fffffffu;
  // Subnormals of the format count in steps of 2^-40, what is below them cut off.
  const bool is_normal = size >= 0x38800000u;
  const std::uint32_t steps = is_normal ? 0 : std::uint32_t(__uint_as_float(size) * 0x1p40f);
  std::uint32_t magnitude = is_normal ? ((size + (random >> 3)) >> 13) - (112u << 10) : (steps + random) >> 16;
  magnitude = min(magnitude, 0x7bffu);
  if (size >= 0x477ff000u) magnitude = size > 0x7f800000u ? ((size >> 13) & 0x3ffu) | 0x7e00u : 0x7c00u;
  return __ushort_as_half(static_cast<unsigned short>(magnitude | ((bits >> 16) & 0x8000u)));
}

}  // namespace refrain::cuda
