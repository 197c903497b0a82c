// Values that change their type while they are moved: one rounding, to nearest, as the CPU's.
#pragma once

#include <refrain/kernels/common/cuda/types.cuh>

namespace refrain::convolution_kernels {

// A float whose rounding to 16 bits is value's (core/rounding.h): inexact results get an odd last bit.
__device__ __forceinline__ float round_to_odd(double value) {
  const float nearest = float(value);
  if (double(nearest) == value || nearest - nearest != 0.0f) return nearest;
  const unsigned bits = __float_as_uint(nearest);
  if (bits & 1u) return nearest;
  return __uint_as_float(fabs(double(nearest)) < fabs(value) ? bits + 1u : bits - 1u);
}

template <class To, class From>
__device__ __forceinline__ To convert_once(From from) {
  if constexpr (std::is_same_v<To, From>) return from;
  else if constexpr (std::is_same_v<From, double> && sizeof(To) == 2) return cuda::narrow<To>(round_to_odd(from));
  else return cuda::narrow<To>(cuda::widen(from));
}

// One thread an element of what can be more than 2^31.
__device__ __forceinline__ std::int64_t global_index() { return std::int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }
inline cuda::LaunchShape one_thread_each(std::int64_t count) { return {.grid = dim3(unsigned(cuda::ceil_div(count, 256))), .block = dim3(256)}; }

// to[i] = from[i], rounded once.
template <class From, class To>
__global__ void __launch_bounds__(256) convert_values(const From* from, std::int64_t count, To* to) {
  const std::int64_t i = global_index();
  if (i < count) to[i] = convert_once<To>(from[i]);
}

}  // namespace refrain::convolution_kernels
