// Philox 4x32-10 for many blocks at once: the same words as RandomKey, bit for bit.
#pragma once

#include <refrain/core/random.h>
#include <refrain/kernels/common/simd.h>

#include <algorithm>
#include <array>

namespace refrain::simd {

// Words of one random stream, two vectors of uint32 at a time.
class RandomWords {
 public:
  using D32 = hn::ScalableTag<std::uint32_t>;
  using D64 = hn::ScalableTag<std::uint64_t>;
  using V32 = hn::Vec<D32>;
  using V64 = hn::Vec<D64>;

  explicit RandomWords(const RandomKey& key) : key_(key) {}

  // Elements of one call: two vectors.
  static constexpr std::int64_t step() { return 2 * std::int64_t(hn::MaxLanes(D32())); }

  // Words of elements first, first + 1, …; `first` is a multiple of 4. Every 64-bit lane computes one block, its 32-bit
  // values in the lower halves: the widening multiplication ignores what gathers in the upper ones.
  HWY_INLINE void next(std::uint64_t first, V32& lower, V32& upper) const {
    const D64 d;
    const D32 d32;
    static_assert(hn::MaxLanes(D64()) >= 2);
    // Lane 2b computes block b and lane 2b + 1 block (lanes / 2) + b, so that the interleaving below leaves order.
    constexpr std::uint64_t half = hn::MaxLanes(D64()) / 2;
    const V64 lane = hn::Iota(d, std::uint64_t{0});
    const V64 b = hn::ShiftRight<1>(lane);
    const V64 offset = hn::Add(b, hn::And(hn::Sub(hn::Zero(d), hn::And(lane, hn::Set(d, std::uint64_t{1}))), hn::Set(d, half)));
    const V64 block = hn::Add(hn::Set(d, first / 4), offset);
    const std::array<std::uint32_t, 4> counter = key_.counter(0);

    V64 c0 = block;
    V64 c1 = hn::Or(hn::ShiftRight<32>(block), hn::Set(d, std::uint64_t{counter[1]}));
    V64 c2 = hn::Set(d, std::uint64_t{counter[2]});
    V64 c3 = hn::Set(d, std::uint64_t{counter[3]});
    const V64 multiplier_a = hn::Set(d, std::uint64_t{0xD2511F53u}), multiplier_b = hn::Set(d, std::uint64_t{0xCD9E8D57u});
    std::uint32_t key0 = std::uint32_t(key_.seed), key1 = std::uint32_t(key_.seed >> 32);
    for (int round = 0; round < 10; ++round) {
      const V64 x = hn::MulEven(hn::BitCast(d32, multiplier_a), hn::BitCast(d32, c0));
      const V64 y = hn::MulEven(hn::BitCast(d32, multiplier_b), hn::BitCast(d32, c2));
      c0 = hn::Xor3(hn::ShiftRight<32>(y), c1, hn::Set(d, std::uint64_t{key0}));
      c1 = y;
      c2 = hn::Xor3(hn::ShiftRight<32>(x), c3, hn::Set(d, std::uint64_t{key1}));
      c3 = x;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    const V32 low = hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(c1)), hn::BitCast(d32, c0));
    const V32 high = hn::OddEven(hn::BitCast(d32, hn::ShiftLeft<32>(c3)), hn::BitCast(d32, c2));
    lower = hn::BitCast(d32, hn::InterleaveLower(d, hn::BitCast(d, low), hn::BitCast(d, high)));
    upper = hn::BitCast(d32, hn::InterleaveUpper(d, hn::BitCast(d, low), hn::BitCast(d, high)));
  }

  // The words of elements first … first + n - 1, any first and n.
  void fill(std::uint64_t first, std::uint32_t* out, std::int64_t n) const {
    const D32 d;
    const std::int64_t lanes = step() / 2;
    V32 lower, upper;
    if (const std::int64_t skip = std::int64_t(first % 4); skip != 0 && n > 0) {
      const auto words = key_.block(first / 4);
      const std::int64_t count = std::min<std::int64_t>(4 - skip, n);
      std::copy_n(words.begin() + skip, count, out);
      first += std::uint64_t(count), out += count, n -= count;
    }
    for (; n > 0; first += std::uint64_t(step()), out += step(), n -= step()) {
      next(first, lower, upper);
      store_first(lower, d, out, std::size_t(n));
      if (n > lanes) store_first(upper, d, out + lanes, std::size_t(n - lanes));
    }
  }

 private:
  RandomKey key_;
};

}  // namespace refrain::simd
