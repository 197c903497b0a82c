// What attention's forward and backward share: how sequences are cut into tiles, which pairs are masked or dropped, and
// the passes over a tile. A tile holds keys in rows and queries in lanes: maxima and sums over keys then need no
// shuffles, each query's statistics are a lane, and a masked key is a row. Tiles are in T = accumulator_t of the tensors' S:
// blocks of 16-bit rows are widened on the stack, sums over tiles are rounded at their end. For .cpp files of the kernels
// room only.
#pragma once

#include <refrain/core/parallel.h>
#include <refrain/kernels/attention/attention.h>
#include <refrain/kernels/attention/tile_product.h>
#include <refrain/kernels/common/simd_math.h>
#include <refrain/kernels/common/simd_random.h>

#include <algorithm>
#include <cstring>
#include <limits>

namespace refrain::attention_tiles {

namespace hn = hwy::HWY_NAMESPACE;

inline constexpr std::int64_t kMaxQueries = kTileStride;  // of a tile
inline constexpr std::int64_t kMaxKeys = 128;

// [0, total) in blocks of nearly equal size, none above `most`. Depends on the length alone.
struct Blocks {
  std::int64_t total, count, size;
  static Blocks of(std::int64_t total, std::int64_t most) {
    const std::int64_t count = (total + most - 1) / most;
    return {total, count, count ? (total + count - 1) / count : 0};
  }
  std::int64_t begin(std::int64_t block) const { return std::min(total, block * size); }
  std::int64_t length(std::int64_t block) const { return std::min(total, begin(block) + size) - begin(block); }
};

inline Blocks query_blocks(std::int64_t queries) { return {queries, (queries + kMaxQueries - 1) / kMaxQueries, kMaxQueries}; }
inline Blocks key_blocks(std::int64_t keys) { return Blocks::of(keys, kMaxKeys); }

// The rows of one sample's head: `step` elements apart.
template <class T>
struct Rows {
  T* first;
  std::int64_t step;
  T* operator[](std::int64_t i) const { return first + i * step; }
};

template <class T, class Arg>
auto head_rows(const Arg& arg, std::int64_t sample, std::int64_t head) {
  auto* data = arg.template data<T>();
  using E = std::remove_pointer_t<decltype(data)>;
  if (data == nullptr) return Rows<E>{nullptr, 0};
  return Rows<E>{data + sample * arg.strides()[0] + head * arg.strides()[2], arg.strides()[1]};
}

template <class T>
void clear_rows(Rows<T> rows, std::int64_t begin, std::int64_t count, std::int64_t width) {
  for (std::int64_t i = begin; i < begin + count; ++i) std::memset(rows[i], 0, std::size_t(width) * sizeof(T));
}

// Elements of a stack buffer that only 16-bit types need.
template <class S>
constexpr std::size_t only_16_bit(std::int64_t count) {
  return is_half<S> ? std::size_t(count) : 1;
}

// Rows begin … begin + count of a block: as they lie, or 16-bit ones widened into `buffer`, [count, width] of T.
template <class S, class T = accumulator_t<S>>
Rows<const T> wide_rows(Rows<const S> rows, std::int64_t begin, std::int64_t count, std::int64_t width, [[maybe_unused]] T* buffer) {
  if constexpr (is_half<S>) {
    for (std::int64_t i = 0; i < count; ++i) simd::map(rows[begin + i], buffer + i * width, width, [](auto, auto x) HWY_ATTR { return x; });
    return {buffer, width};
  } else {
    return {rows[begin], rows.step};
  }
}

// Rounds count rows of sums into rows begin … begin + count.
template <class S, class T = accumulator_t<S>>
void round_rows(const T* sums, Rows<S> rows, std::int64_t begin, std::int64_t count, std::int64_t width) {
  for (std::int64_t i = 0; i < count; ++i) simd::map(sums + i * width, rows[begin + i], width, [](auto, auto x) HWY_ATTR { return x; });
}

template <class T>
inline constexpr std::int64_t kLanes = std::int64_t(hn::MaxLanes(simd::Tag<T>()));

template <class T>
std::int64_t whole_vectors(std::int64_t count) {
  return (count + kLanes<T> - 1) / kLanes<T> * kLanes<T>;
}

// out[c·kTileStride + i] = factor · rows[i][c], zero for the lanes from `count` to a whole number of vectors.
template <class T>
void pack_transposed(Rows<const T> rows, std::int64_t begin, std::int64_t count, std::int64_t width, T factor, T* HWY_RESTRICT out) {
  std::int64_t i = 0;
  if constexpr (sizeof(T) == 4) {
    const hn::FixedTag<T, 4> d;
    const hn::Repartition<std::uint64_t, decltype(d)> d64;
    const auto f = hn::Set(d, factor);
    for (; i + 4 <= count; i += 4) {
      const T *r0 = rows[begin + i], *r1 = rows[begin + i + 1], *r2 = rows[begin + i + 2], *r3 = rows[begin + i + 3];
      std::int64_t c = 0;
      for (; c + 4 <= width; c += 4) {
        const auto v0 = hn::Mul(hn::LoadU(d, r0 + c), f), v1 = hn::Mul(hn::LoadU(d, r1 + c), f);
        const auto v2 = hn::Mul(hn::LoadU(d, r2 + c), f), v3 = hn::Mul(hn::LoadU(d, r3 + c), f);
        const auto l01 = hn::BitCast(d64, hn::InterleaveLower(d, v0, v1)), l23 = hn::BitCast(d64, hn::InterleaveLower(d, v2, v3));
        const auto u01 = hn::BitCast(d64, hn::InterleaveUpper(d, v0, v1)), u23 = hn::BitCast(d64, hn::InterleaveUpper(d, v2, v3));
        T* o = out + c * kTileStride + i;
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, l01, l23)), d, o);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, l01, l23)), d, o + kTileStride);
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d64, u01, u23)), d, o + 2 * kTileStride);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d64, u01, u23)), d, o + 3 * kTileStride);
      }
      for (; c < width; ++c) {
        T* o = out + c * kTileStride + i;
        o[0] = r0[c] * factor, o[1] = r1[c] * factor, o[2] = r2[c] * factor, o[3] = r3[c] * factor;
      }
    }
  }
  for (; i < count; ++i) {
    const T* row = rows[begin + i];
    for (std::int64_t c = 0; c < width; ++c) out[c * kTileStride + i] = row[c] * factor;
  }
  for (; i < whole_vectors<T>(count); ++i) {
    for (std::int64_t c = 0; c < width; ++c) out[c * kTileStride + i] = 0;
  }
}

// Which (query, key) pairs of a tile are masked: in the row of key j the lanes below first[j].
struct TileMask {
  std::int32_t first[kMaxKeys];
  bool any = false;  // some pair is masked
  bool all = true;   // every pair is masked: the tile may be left out

  template <class K>
  TileMask(const K& k, std::int64_t sample, std::int64_t i0, std::int64_t num_queries, std::int64_t j0, std::int64_t num_keys) {
    const std::uint8_t* bytes = reinterpret_cast<const std::uint8_t*>(k.key_mask.address());
    if (!k.causal && bytes == nullptr) {
      all = false;
      return;
    }
    const std::int64_t offset = k.k.dim(1) - k.q.dim(1);
    for (std::int64_t j = 0; j < num_keys; ++j) {
      std::int64_t lane = k.causal ? std::clamp<std::int64_t>(j0 + j - offset - i0, 0, kMaxQueries) : 0;
      if (bytes != nullptr && bytes[sample * k.key_mask.strides()[0] + (j0 + j) * k.key_mask.strides()[1]] == 0) lane = kMaxQueries;
      first[j] = std::int32_t(lane);
      any = any || lane > 0;
      all = all && lane >= num_queries;
    }
  }

  template <class T>
  void apply(T* tile, std::int64_t num_keys) const {
    if (!any) return;
    for (std::int64_t j = 0; j < num_keys; ++j) std::fill_n(tile + j * kTileStride, first[j], -std::numeric_limits<T>::infinity());
  }
};

// Dropout's factor of every pair of a tile: 0, or 1/(1-p).
template <class T, class K>
void fill_keep(const K& k, std::int64_t sample, std::int64_t head, std::int64_t i0, std::int64_t num_queries, std::int64_t j0,
               std::int64_t num_keys, T* keep) {
  const std::uint32_t threshold = std::uint32_t(k.dropout * 0x1p32);
  const T kept = T(1 / (1 - k.dropout));
  const simd::RandomWords random(k.key);
  constexpr std::int64_t kGroup = 16;
  alignas(64) std::uint32_t words[kMaxKeys];
  alignas(64) T factors[kGroup * kMaxKeys];
  for (std::int64_t begin = 0; begin < num_queries; begin += kGroup) {
    const std::int64_t count = std::min(kGroup, num_queries - begin);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = (sample * k.q.dim(2) + head) * k.q.dim(1) + i0 + begin + i;
      random.fill(std::uint64_t(k.first_element + row * k.k.dim(1) + j0), words, num_keys);
      T* out = factors + i * kMaxKeys;
      for (std::int64_t j = 0; j < num_keys; ++j) out[j] = words[j] >= threshold ? kept : T(0);
    }
    pack_transposed<T>({factors, kMaxKeys}, 0, count, num_keys, T(1), keep + begin);
  }
}

// Calls f.template operator()<n>(c) for groups of n = 4, then n = 1 vectors that start at lane c: four keep the
// additions of independent lanes in flight.
template <class T, class F>
HWY_INLINE void for_lane_groups(std::int64_t num_queries, F&& f) {
  std::int64_t c = 0;
  for (; c + 3 * kLanes<T> < num_queries; c += 4 * kLanes<T>) f.template operator()<4>(c);
  for (; c < num_queries; c += kLanes<T>) f.template operator()<1>(c);
}

}  // namespace refrain::attention_tiles
