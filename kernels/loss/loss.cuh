// What the losses' kernels share: sums in the CPU's order, and the count of targets that are not ignored.
#pragma once

#include <refrain/kernels/common/cuda/rows.cuh>
#include <refrain/kernels/loss/loss.h>

namespace refrain::loss_kernels {

using namespace cuda;
using cuda::accumulator;

inline constexpr int kSumThreads = 256, kSumTile = 2048;

// The f64 sum of `values` in their order, in thread 0 of a block of kSumThreads: all threads fetch, one adds, so that the bits
// are those of the CPU's loop. An addition waits for the one before, some 8 cycles; a tile is fetched while none waits.
template <class T>
__device__ __forceinline__ double sum_in_order(const T* values, std::int64_t count, T (&tile)[kSumTile]) {
  double sum = 0;
  for (std::int64_t begin = 0; begin < count; begin += kSumTile) {
    const int here = count - begin < kSumTile ? int(count - begin) : kSumTile;
    for (int i = int(threadIdx.x); i < here; i += kSumThreads) tile[i] = values[begin + i];
    __syncthreads();
    if (threadIdx.x == 0) {
#pragma unroll 8
      for (int i = 0; i < here; ++i) sum += double(tile[i]);
    }
    __syncthreads();
  }
  return sum;
}

// How many targets are not ignore_index, in every thread of a block of kThreads.
template <int kThreads>
__device__ __forceinline__ std::int64_t count_kept(const std::int64_t* targets, std::int64_t count, std::int64_t ignore_index,
                                                   unsigned long long (&slots)[kThreads / kWarp]) {
  unsigned long long kept = 0;
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) kept += targets[i] != ignore_index;
  return std::int64_t(block_reduce<kThreads, Add>(kept, slots));
}

// What the gradient of a sum or mean over rows is multiplied by for each of them.
template <int kThreads>
__device__ __forceinline__ double gradient_factor(const std::int64_t* targets, std::int64_t rows, std::int64_t ignore_index,
                                                  Reduction reduction, double scale,
                                                  unsigned long long (&slots)[kThreads / kWarp]) {
  if (reduction != Reduction::mean) return scale;
  const std::int64_t kept = count_kept<kThreads>(targets, rows, ignore_index, slots);
  return scale / double(kept > 1 ? kept : 1);
}

}  // namespace refrain::loss_kernels
