// Sums and maxima over a warp and a block, in one fixed order: the same bits in every run.
#pragma once

#include <refrain/kernels/common/cuda/types.cuh>

namespace refrain::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

struct Add {
  template <class A> __device__ __forceinline__ A operator()(A a, A b) const { return a + b; }
};
struct Larger {  // NaN wins
  template <class A> __device__ __forceinline__ A operator()(A a, A b) const { return a > b || a != a ? a : b; }
};

// Every lane gets the result of all 32.
template <class Op, class A>
__device__ __forceinline__ A warp_reduce(A value, Op op = {}) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) value = op(value, __shfl_xor_sync(kAllLanes, value, distance));
  return value;
}

// Every thread of a block of kThreads gets the result of all. `slots` is shared memory of kThreads / 32 values that this call
// has for itself: it may be used again after the next barrier of the block.
template <int kThreads, class Op, class A>
__device__ __forceinline__ A block_reduce(A value, A* slots, Op op = {}) {
  static_assert(kThreads % kWarp == 0 && kThreads <= 1024);
  value = warp_reduce(value, op);
  if constexpr (kThreads == kWarp) return value;
  if (threadIdx.x % kWarp == 0) slots[threadIdx.x / kWarp] = value;
  __syncthreads();
  value = slots[0];
#pragma unroll
  for (int warp = 1; warp < kThreads / kWarp; ++warp) value = op(value, slots[warp]);
  return value;
}

}  // namespace refrain::cuda
