// Which elements of a thread's fragments count, as bits: bit 4n + e tells of element e of fragment n. Made in loops that are not
// unrolled, away from the products: whatever is asked for, the products' registers hold one word a group of rows.
#pragma once

#include <refrain/kernels/attention/tiles.cuh>

namespace refrain::attention_kernels {

// A tile of pairs whose rows are queries, or keys when it is transposed.
template <bool kTransposed>
struct PairTile {
  int sample;
  std::int64_t head;  // counted over samples
  int first_query, first_key;

  __device__ int query(int row, int column) const { return first_query + (kTransposed ? column : row); }
  __device__ int key(int row, int column) const { return first_key + (kTransposed ? row : column); }
};

// Bits of the pairs that may be attended to; `first` is the first row of a group of 16.
template <int N, bool kTransposed>
__device__ __forceinline__ unsigned visible_bits(const Pairs& pairs, const PairTile<kTransposed>& tile, int first) {
  const int row = first + lane_of_thread() / 4, column = lane_of_thread() % 4 * 2;
  unsigned bits = 0;
#pragma unroll 1
  for (int i = 0; i < 4 * N; ++i) {
    const int r = row + i / 2 % 2 * 8, c = column + i / 4 * 8 + i % 2;
    if (pairs.is_visible(tile.sample, tile.query(r, c), tile.key(r, c))) bits |= 1u << i;
  }
  return bits;
}

__device__ __forceinline__ unsigned kept_of_block(const Pairs& pairs, std::int64_t block) {
  const cuda::RandomBlock random = pairs.random.block(std::uint64_t(block));
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) bits |= unsigned(random.words[i] >= pairs.threshold) << i;
  return bits;
}

// Bits of the pairs that dropout keeps. A block of random numbers is four neighbouring keys. Where they start at multiples of
// four, each thread makes one of the blocks that it shares with its neighbours and they trade; elsewhere everyone makes its own.
template <int N, bool kTransposed>
__device__ __forceinline__ unsigned kept_bits(const Pairs& pairs, const PairTile<kTransposed>& tile, int first) {
  const int lane = lane_of_thread();
  unsigned bits = 0;
  if (pairs.num_keys % 4 == 0 && pairs.first_element % 4 == 0 && tile.first_key % 4 == 0) {
#pragma unroll 1
    for (int n = 0; n < N; ++n) {
      if constexpr (kTransposed) {
        // Four lanes 4 apart hold the four keys of a block, for two queries in each half of the rows.
        const int member = lane / 4 % 4, group = lane / 16 * 4;
        const int query = tile.first_query + 8 * n + lane % 4 * 2 + member % 2,
                  key = tile.first_key + first + group + member / 2 * 8;
        const unsigned own = kept_of_block(pairs, (pairs.element(tile.head, query) + key) / 4);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const unsigned of = __shfl_sync(cuda::kAllLanes, own, lane / 16 * 16 + e * 4 + lane % 4);
          bits |= (of >> member & 1u) << (4 * n + e);
        }
      } else {
        // Two lanes hold the four keys of a block, for a query in each half of the rows.
        const int query = tile.first_query + first + lane / 4 + lane % 2 * 8, key = tile.first_key + 8 * n + lane % 4 / 2 * 4;
        const unsigned own = kept_of_block(pairs, (pairs.element(tile.head, query) + key) / 4);
        const unsigned other = __shfl_xor_sync(cuda::kAllLanes, own, 1);
        const unsigned upper = lane % 2 == 0 ? own : other, lower = lane % 2 == 0 ? other : own;
        bits |= ((upper >> lane % 2 * 2 & 3u) | (lower >> lane % 2 * 2 & 3u) << 2) << (4 * n);
      }
    }
    return bits;
  }
  const int row = first + lane / 4, column = lane % 4 * 2;
#pragma unroll 1
  for (int i = 0; i < 4 * N; ++i) {
    const int r = row + i / 2 % 2 * 8, c = column + i / 4 * 8 + i % 2;
    const std::int64_t element = pairs.element(tile.head, tile.query(r, c)) + tile.key(r, c);
    bits |= (kept_of_block(pairs, element / 4) >> int(element % 4) & 1u) << i;
  }
  return bits;
}

}  // namespace refrain::attention_kernels
