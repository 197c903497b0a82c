// Attention without tensor cores, for any floating dtype and head dims up to 256: sums in f32 (f64 for itself), 16-bit rows are
// widened as they are read, and nothing is rounded before the end.
//
// 256 threads, 16 by 16, own a tile of kSide x kSide scores: thread (y, x) holds rows y + 16i and columns x + 16j. Rows of the
// operands come through shared memory 32 columns at a time, read there in packs of 16 bytes; a row's padding of one pack keeps
// the packs of neighbouring rows in different banks. Results of a row are spread over the threads x, so that sums over
// a tile's columns go through shared memory once and those over a row's scores are shuffles of half a warp.
#pragma once

#include <refrain/kernels/attention/pairs.cuh>
#include <refrain/kernels/common/cuda/math.cuh>

namespace refrain::attention_kernels::generic {

inline constexpr int kEdge = 16, kThreads = kEdge * kEdge, kSlice = 32;

// S: of the tensors; kWidth: the head dim or more, a multiple of 32.
template <class S, int kHeadDims>
struct Tiles {
  using T = cuda::accumulator<S>;
  static constexpr int kWidth = kHeadDims;
  // A thread keeps kWidth · kSide / 256 sums, twice that where two gradients are made.
  static constexpr int kSide = sizeof(T) == 4 && kWidth <= 128 ? 64 : 32, kMicro = kSide / kEdge;
  static constexpr int kPack = 16 / int(sizeof(T));
  static constexpr int kSliceStep = kSlice + kPack, kScoreStep = kSide + kPack;
  static constexpr int kColumns = kSlice / kEdge, kSlices = kWidth / kSlice;

  // A thread's part of kSide scores a row, and of kWidth results a row.
  using Scores = T[kMicro][kMicro];
  using Results = T[kMicro][kSlices * kColumns];

  T left[kSide * kSliceStep], right[kSide * kSliceStep];
  T scores[kSide * kScoreStep];
};

__device__ __forceinline__ int x_of_thread() { return int(threadIdx.x) % kEdge; }
__device__ __forceinline__ int y_of_thread() { return int(threadIdx.x) / kEdge; }

__device__ __forceinline__ float fused(float a, float b, float c) { return __fmaf_rn(a, b, c); }
__device__ __forceinline__ double fused(double a, double b, double c) { return __fma_rn(a, b, c); }

// Rows of one head, of which `total` exist.
template <class S>
struct Rows {
  const S* data;
  std::int64_t step;
  int total;
};
template <class S>
__device__ __forceinline__ Rows<S> rows_of(const Heads<const S>& heads, std::int64_t sample, std::int64_t head, int total) {
  return {heads.rows(sample, head), heads.row_step, total};
}

// Columns 32·slice … of rows first … first + kSide, times `factor`; zeros outside.
template <class Tile, class S, class T>
__device__ __forceinline__ void load_slice(T* to, const Rows<S>& rows, int first, int slice, int width, T factor) {
#pragma unroll 4
  for (int at = int(threadIdx.x); at < Tile::kSide * kSlice; at += kThreads) {
    const int row = at / kSlice, d = slice * kSlice + at % kSlice;
    const bool is_inside = first + row < rows.total && d < width;
    to[row * Tile::kSliceStep + at % kSlice] =
        is_inside ? T(cuda::widen(rows.data[(first + row) * rows.step + d])) * factor : T(0);
  }
}

// scores = A·Bᵀ of rows a0 … of A, times `factor`, and rows b0 … of B. Waits for those who still read shared memory.
template <class Tile, class S>
__device__ __forceinline__ void multiply_rows(typename Tile::Scores& scores, Tile& shared, const Rows<S>& a, int a0,
                                              typename Tile::T factor, const Rows<S>& b, int b0, int width) {
  using T = typename Tile::T;
#pragma unroll
  for (int i = 0; i < Tile::kMicro; ++i)
#pragma unroll
    for (int j = 0; j < Tile::kMicro; ++j) scores[i][j] = 0;
#pragma unroll 1
  for (int slice = 0; slice * kSlice < width; ++slice) {
    __syncthreads();
    load_slice<Tile>(shared.left, a, a0, slice, width, factor);
    load_slice<Tile>(shared.right, b, b0, slice, width, T(1));
    __syncthreads();
#pragma unroll 1
    for (int d = 0; d < kSlice; d += Tile::kPack) {
      cuda::Pack<T> left[Tile::kMicro], right[Tile::kMicro];
#pragma unroll
      for (int i = 0; i < Tile::kMicro; ++i) {
        left[i] = cuda::load_pack(&shared.left[(y_of_thread() + kEdge * i) * Tile::kSliceStep + d]);
        right[i] = cuda::load_pack(&shared.right[(x_of_thread() + kEdge * i) * Tile::kSliceStep + d]);
      }
#pragma unroll
      for (int e = 0; e < Tile::kPack; ++e)
#pragma unroll
        for (int i = 0; i < Tile::kMicro; ++i)
#pragma unroll
          for (int j = 0; j < Tile::kMicro; ++j) scores[i][j] = fused(left[i][e], right[j][e], scores[i][j]);
    }
  }
}

// results += scores·B of rows b0 … of B.
template <class Tile, class S>
__device__ __forceinline__ void accumulate(typename Tile::Results& results, Tile& shared, const typename Tile::Scores& scores,
                                           const Rows<S>& b, int b0, int width) {
  using T = typename Tile::T;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < Tile::kMicro; ++i)
#pragma unroll
    for (int j = 0; j < Tile::kMicro; ++j)
      shared.scores[(y_of_thread() + kEdge * i) * Tile::kScoreStep + x_of_thread() + kEdge * j] = scores[i][j];
#pragma unroll
  for (int slice = 0; slice < Tile::kSlices; ++slice) {
    if (slice * kSlice >= width) break;
    __syncthreads();
    load_slice<Tile>(shared.right, b, b0, slice, width, T(1));
    __syncthreads();
#pragma unroll 1
    for (int j = 0; j < Tile::kSide; j += Tile::kPack) {
      cuda::Pack<T> left[Tile::kMicro];
#pragma unroll
      for (int i = 0; i < Tile::kMicro; ++i)
        left[i] = cuda::load_pack(&shared.scores[(y_of_thread() + kEdge * i) * Tile::kScoreStep + j]);
#pragma unroll
      for (int e = 0; e < Tile::kPack; ++e)
#pragma unroll
        for (int c = 0; c < Tile::kColumns; ++c) {
          const T value = shared.right[(j + e) * Tile::kSliceStep + x_of_thread() + kEdge * c];
#pragma unroll
          for (int i = 0; i < Tile::kMicro; ++i) {
            T& sum = results[i][slice * Tile::kColumns + c];
            sum = fused(left[i][e], value, sum);
          }
        }
    }
  }
}

// Rows first … of a head: results times factor[i], rounded.
template <class Tile, class S>
__device__ __forceinline__ void store_results(const Heads<S>& heads, S* rows, int first, int total, int width,
                                              const typename Tile::Results& results,
                                              const typename Tile::T (&factor)[Tile::kMicro]) {
#pragma unroll
  for (int i = 0; i < Tile::kMicro; ++i) {
    const int row = first + y_of_thread() + kEdge * i;
    if (row >= total) continue;
#pragma unroll
    for (int c = 0; c < Tile::kSlices * Tile::kColumns; ++c) {
      const int d = x_of_thread() + kEdge * c;
      if (d < width) rows[row * heads.row_step + d] = cuda::narrow<S>(results[i][c] * factor[i]);
    }
  }
}

// Where a block is: its head, and the tile that it owns of `length` rows, the last first.
struct Place {
  std::int64_t head;
  int sample, head_of_sample, first;

  __device__ __forceinline__ Place(const Pairs& pairs, int length, int side) {
    const int num_tiles = (length + side - 1) / side;
    head = blockIdx.x / num_tiles;
    sample = int(head / pairs.num_heads), head_of_sample = int(head % pairs.num_heads);
    first = (num_tiles - 1 - int(blockIdx.x) % num_tiles) * side;
  }
};

// 1 / (1 - dropout), or 0 where (query, key) is dropped.
template <class T>
__device__ __forceinline__ T keep_factor(const Pairs& pairs, std::int64_t head, int query, int key) {
  if (!pairs.has_dropout) return T(1);
  return pairs.random.word(std::uint64_t(pairs.element(head, query) + key)) >= pairs.threshold ? T(pairs.kept) : T(0);
}

// Calls f with the tiles for a dtype and head dim.
template <class F>
void dispatch_tiles(DType dtype, std::int64_t width, std::string_view op, F&& f) {
  cuda::dispatch_floating(dtype, op, [&](auto zero) {
    using S = decltype(zero);
    if constexpr (std::is_same_v<S, float>) {
      if (width <= 64) return f(zero, static_cast<Tiles<S, 64>*>(nullptr));
      if (width <= 128) return f(zero, static_cast<Tiles<S, 128>*>(nullptr));
    }
    return f(zero, static_cast<Tiles<S, kMaxHeadDim>*>(nullptr));
  });
}

}  // namespace refrain::attention_kernels::generic
