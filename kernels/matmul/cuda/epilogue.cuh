// What becomes of a product's sums: alpha, beta, biases, activation, one rounding. One definition for all of the GEMM kernels.
#pragma once

#include <refrain/kernels/common/cuda/types.cuh>
#include <refrain/kernels/matmul/cuda/activation.cuh>

namespace refrain::matmul_kernels {

using cuda::accumulator, cuda::load_pack, cuda::narrow, cuda::Pack, cuda::store_pack, cuda::widen, cuda::math::fused;

// A: what is summed in. Addresses are of the operands' type T, or of A where `is_…_wide`.
template <class A>
struct Epilogue {
  void* c;
  void* pre;                      // or null
  const void* bias;               // [n] or null
  const void* row_bias;           // [m] or null
  A* partials;                    // null, or where raw sums of a piece of k go: [pieces, batch, m, n]
  std::int64_t ldc, c_batch_stride;
  A alpha, beta;
  Activation activation;
  bool is_c_wide, is_bias_wide;
  bool is_vectorised;             // groups of eight columns of c and pre (four for f32, f64) lie whole and aligned
  bool are_partials_vectorised;
};

// kWidth neighbours of X, in loads and stores of 16 bytes.
template <class X, int kWidth, class A>
__device__ __forceinline__ void load_wide(const X* from, A (&to)[kWidth]) {
  constexpr int kBytes = kWidth * int(sizeof(X)) < 16 ? kWidth * int(sizeof(X)) : 16;
  constexpr int kEach = kBytes / int(sizeof(X));
#pragma unroll
  for (int i = 0; i < kWidth; i += kEach) {
    const auto pack = load_pack<X, kBytes>(from + i);
#pragma unroll
    for (int j = 0; j < kEach; ++j) to[i + j] = widen(pack[j]);
  }
}

template <class X, int kWidth, class A>
__device__ __forceinline__ void store_wide(const A (&from)[kWidth], X* to) {
  constexpr int kBytes = kWidth * int(sizeof(X)) < 16 ? kWidth * int(sizeof(X)) : 16;
  constexpr int kEach = kBytes / int(sizeof(X));
#pragma unroll
  for (int i = 0; i < kWidth; i += kEach) {
    Pack<X, kBytes> pack;
#pragma unroll
    for (int j = 0; j < kEach; ++j) pack[j] = narrow<X>(from[i + j]);
    store_pack(to + i, pack);
  }
}

template <class X, int kWidth, class A>
__device__ __forceinline__ void load_some(const X* from, int count, bool is_vectorised, A (&to)[kWidth]) {
  if (is_vectorised) return load_wide(from, to);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) to[i] = i < count ? widen(from[i]) : A(0);
}

template <class X, int kWidth, class A>
__device__ __forceinline__ void store_some(const A (&from)[kWidth], int count, bool is_vectorised, X* to) {
  if (is_vectorised) return store_wide(from, to);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    if (i < count) to[i] = narrow<X>(from[i]);
  }
}

template <class T>
__device__ __forceinline__ accumulator<T> bias_at(const void* bias, bool is_wide, std::int64_t i) {
  return is_wide ? static_cast<const accumulator<T>*>(bias)[i] : widen(static_cast<const T*>(bias)[i]);
}

// The rest of finish(), for a C of type C.
template <class C, class A, int kWidth>
__device__ __forceinline__ void finish_as(const Epilogue<A>& e, std::int64_t at, int count, const A (&start)[kWidth], A (&v)[kWidth]) {
  C* c = static_cast<C*>(e.c) + at;
  if (e.beta != A(0)) {
    A before[kWidth];
    load_some(static_cast<const C*>(c), count, e.is_vectorised, before);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = fused(e.alpha, v[i], fused(e.beta, before[i], start[i]));
  } else {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = fused(e.alpha, v[i], start[i]);
  }
  if (e.pre) store_some(v, count, e.is_vectorised, static_cast<C*>(e.pre) + at);
  if (e.activation != Activation::none) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) v[i] = widen(narrow<C>(v[i]));
    activate(e.activation, v);
  }
  store_some(v, count, e.is_vectorised, c);
}

// Sums of row `row`, columns `col` … of product `product` in the batch, of which `count` (at most kWidth) exist.
template <class T, int kWidth>
__device__ __forceinline__ void finish(const Epilogue<accumulator<T>>& e, std::int64_t product, std::int64_t row, std::int64_t col, int count,
                                       accumulator<T> (&v)[kWidth]) {
  using A = accumulator<T>;
  A start[kWidth];
  const A row_start = e.row_bias ? bias_at<T>(e.row_bias, e.is_bias_wide, row) : A(0);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) start[i] = e.bias && i < count ? bias_at<T>(e.bias, e.is_bias_wide, col + i) + row_start : row_start;
  const std::int64_t at = product * e.c_batch_stride + row * e.ldc + col;
  if constexpr (!std::is_same_v<T, A>) {
    if (!e.is_c_wide) return finish_as<T>(e, at, count, start, v);
  }
  finish_as<A>(e, at, count, start, v);
}

}  // namespace refrain::matmul_kernels
