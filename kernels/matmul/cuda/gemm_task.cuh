// What every GEMM kernel is given, and how its blocks find their tile.
#pragma once

#include <refrain/kernels/matmul/cuda/epilogue.cuh>
#include <refrain/kernels/matmul/cuda/product.h>

namespace refrain::matmul_kernels {

struct GemmSource {
  const void* data;
  std::int64_t ld;
  std::int64_t batch_strides[3];
  bool is_along_k;      // neighbours in memory are neighbours along k, not along m or n
  bool is_vectorised;   // aligned to 16 bytes everywhere, and its rows in memory are whole packs
};

template <class A>
struct GemmTask {
  std::int64_t m, n, k;
  GemmSource a, b;
  int batch_dims[3];
  int first_product, num_products;  // of the batch: this launch's first, and all there are
  int tile_rows, tile_cols;         // numbers of tiles
  std::int64_t piece;               // of k for each blockIdx.y: a multiple of the tiles' depth
  Epilogue<A> epilogue;
};

__device__ __forceinline__ std::int64_t batch_offset(const GemmSource& source, const int (&dims)[3], int product) {
  const int inner = product % dims[2], rest = product / dims[2];
  return inner * source.batch_strides[2] + rest % dims[1] * source.batch_strides[1] + rest / dims[1] * source.batch_strides[0];
}

// The tile of blockIdx.x. Eight rows of tiles are gone through column by column, so that what blocks next to each other in
// time read is still in the second-level cache.
struct TilePlace {
  int row, col;
};
__device__ __forceinline__ TilePlace tile_place(int tile_rows, int tile_cols) {
  constexpr int kGroup = 8;
  const int group = int(blockIdx.x) / (kGroup * tile_cols), within = int(blockIdx.x) % (kGroup * tile_cols);
  const int first = group * kGroup, rows = tile_rows - first < kGroup ? tile_rows - first : kGroup;
  return {first + within % rows, within / rows};
}

// The same for all kernels: raw sums of a piece of k, or finished values.
template <class T, int kWidth>
__device__ __forceinline__ void put(const GemmTask<accumulator<T>>& task, int product, std::int64_t row, std::int64_t col, accumulator<T> (&v)[kWidth]) {
  if (row >= task.m || col >= task.n) return;
  const int count = int(task.n - col < kWidth ? task.n - col : kWidth);
  if (task.epilogue.partials) {
    const std::int64_t line = (std::int64_t(blockIdx.y) * task.num_products + product) * task.m + row;
    return store_some(v, count, task.epilogue.are_partials_vectorised, task.epilogue.partials + line * task.n + col);
  }
  finish<T>(task.epilogue, product, row, col, count, v);
}

}  // namespace refrain::matmul_kernels
