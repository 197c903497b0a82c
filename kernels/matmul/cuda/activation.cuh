// The activations a product may end with, in the arithmetic of the elementwise kernels: the same bits from the same value.
#pragma once

#include <refrain/kernels/common/cuda/math.cuh>
#include <refrain/kernels/matmul/gemm.h>

namespace refrain::matmul_kernels {

template <class A, int kWidth>
__device__ __forceinline__ void activate(Activation activation, A (&v)[kWidth]) {
  if (activation == Activation::relu) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = v[i] < A(0) ? A(0) : v[i];
  } else if (activation == Activation::gelu_erf) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = cuda::math::gelu_erf(v[i]);
  } else if (activation == Activation::gelu_tanh) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = cuda::math::gelu_tanh(v[i]);
  }
}

}  // namespace refrain::matmul_kernels
