// One rounding from f64 to any floating type, as core/rounding.h does it.
#pragma once

#include <refrain/kernels/common/cuda/types.cuh>

namespace refrain::cuda {

// To float so that a second rounding to 11 bits or fewer gives what one would have: inexact results get an odd last bit.
__device__ __forceinline__ float round_to_odd(double value) {
  const float nearest = __double2float_rn(value);
  const std::uint32_t bits = __float_as_uint(nearest);
  const bool is_final = double(nearest) == value || value != value || (bits & 0x7fffffffu) == 0x7f800000u || (bits & 1u);
  if (is_final) return nearest;
  return __uint_as_float(fabs(double(nearest)) < fabs(value) ? bits + 1u : bits - 1u);
}

template <class To>
__device__ __forceinline__ To narrow_once(double value) {
  if constexpr (sizeof(To) == 2)
    return narrow<To>(round_to_odd(value));
  else
    return To(value);
}

}  // namespace refrain::cuda
