// What a .cu file sees instead of CUDA when a C++ compiler builds it for the emulator: the same names, on fibers. Included by
// core/cuda/platform.cuh alone.
#pragma once

#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <refrain/kernels/emulator/atomics.h>
#include <refrain/kernels/emulator/launch.h>
#include <refrain/kernels/emulator/math.h>
#include <refrain/kernels/emulator/shared_memory.h>
#include <refrain/kernels/emulator/thread.h>
#include <refrain/kernels/emulator/warp.h>

#ifndef __launch_bounds__
#define __launch_bounds__(...)
#endif
#ifndef __grid_constant__
#define __grid_constant__
#endif
#undef __shared__
#define __shared__ static_assert(false, "use REFRAIN_SHARED or REFRAIN_DYNAMIC_SHARED");

// A block's array in static shared memory: REFRAIN_SHARED(float, tile, [32][33]);
#define REFRAIN_SHARED(T, name, dims)                                                \
  typedef T name##_array_ dims;                                                      \
  static const char name##_key_ = 0;                                                 \
  name##_array_& name = *static_cast<name##_array_*>(::refrain::emulator::static_shared( \
      &name##_key_, sizeof(name##_array_), alignof(name##_array_), #name))
// The start of the block's dynamic shared memory, aligned to 128 bytes; one a kernel.
#define REFRAIN_DYNAMIC_SHARED(T, name) T* name = static_cast<T*>(::refrain::emulator::dynamic_shared())

#define threadIdx (::refrain::emulator::current_thread->index)
#define blockIdx (::refrain::emulator::current_thread->block)
#define blockDim (::refrain::emulator::current_thread->block_extent)
#define gridDim (::refrain::emulator::current_thread->grid_extent)
#define warpSize 32

inline void __syncthreads(REFRAIN_EMULATOR_SITE) { refrain::emulator::block_barrier(site); }
inline void __syncwarp(unsigned mask = ~0u, REFRAIN_EMULATOR_SITE) { refrain::emulator::warp_barrier(mask, site); }
inline unsigned __activemask() { return refrain::emulator::active_mask(); }
[[noreturn]] inline void __trap() { throw refrain::emulator::Error("__trap"); }

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32, REFRAIN_EMULATOR_SITE) {
  return refrain::emulator::shuffle<refrain::emulator::Shuffle::index>(mask, value, lane, width, site);
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = 32, REFRAIN_EMULATOR_SITE) {
  return refrain::emulator::shuffle<refrain::emulator::Shuffle::up>(mask, value, int(distance), width, site);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = 32, REFRAIN_EMULATOR_SITE) {
  return refrain::emulator::shuffle<refrain::emulator::Shuffle::down>(mask, value, int(distance), width, site);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, REFRAIN_EMULATOR_SITE) {
  return refrain::emulator::shuffle<refrain::emulator::Shuffle::exclusive_or>(mask, value, lanes, width, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, REFRAIN_EMULATOR_SITE) { return refrain::emulator::ballot(mask, predicate != 0, site); }
inline int __any_sync(unsigned mask, int predicate, REFRAIN_EMULATOR_SITE) { return refrain::emulator::ballot(mask, predicate != 0, site) != 0; }
inline int __all_sync(unsigned mask, int predicate, REFRAIN_EMULATOR_SITE) { return refrain::emulator::ballot(mask, predicate == 0, site) == 0; }

#define REFRAIN_EMULATOR_REDUCE(name, T, expression)                                    \
  inline T name(unsigned mask, T value, REFRAIN_EMULATOR_SITE) {                        \
    return refrain::emulator::warp_combine(mask, value, [](T a, T b) -> T { return expression; }, site, #name); \
  }
REFRAIN_EMULATOR_REDUCE(__reduce_add_sync, unsigned, a + b)
REFRAIN_EMULATOR_REDUCE(__reduce_add_sync, int, int(unsigned(a) + unsigned(b)))
REFRAIN_EMULATOR_REDUCE(__reduce_min_sync, unsigned, a < b ? a : b)
REFRAIN_EMULATOR_REDUCE(__reduce_min_sync, int, a < b ? a : b)
REFRAIN_EMULATOR_REDUCE(__reduce_max_sync, unsigned, a > b ? a : b)
REFRAIN_EMULATOR_REDUCE(__reduce_max_sync, int, a > b ? a : b)
REFRAIN_EMULATOR_REDUCE(__reduce_and_sync, unsigned, a & b)
REFRAIN_EMULATOR_REDUCE(__reduce_or_sync, unsigned, a | b)
REFRAIN_EMULATOR_REDUCE(__reduce_xor_sync, unsigned, a ^ b)
#undef REFRAIN_EMULATOR_REDUCE
