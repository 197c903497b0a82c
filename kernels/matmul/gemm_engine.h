// One single-threaded library call of a GEMM tile. Private to gemm.cpp and the engines.
#pragma once

#include <refrain/kernels/matmul/gemm.h>

namespace refrain::detail {

// C[m,n] = alpha op(A) op(B) + beta C with m, n, k > 0.
template <class T>
struct TileCall {
  std::int64_t m, n, k;
  T alpha;
  GemmOperand<T> a, b;
  T beta;
  T* c;
  std::int64_t ldc;
};

void eigen_tile(const TileCall<float>& call);
void eigen_tile(const TileCall<double>& call);
void onednn_tile(const TileCall<float>& call);
// bias[n], or null, is added; only with beta 0.
void builtin_tile(const TileCall<float>& call, const float* bias);
void builtin_tile(const TileCall<double>& call, const double* bias);

// Adds the bias and applies the activation to a tile that was just computed. `bias` may be null, so may `pre`.
template <class T>
void apply_epilogue(T* c, T* pre, std::int64_t ldc, std::int64_t m, std::int64_t n, const T* bias, Activation activation);

// sums[i] = sum over k of A[k, i] for i < m, in an order that depends on k alone.
template <class T>
void column_sums(const T* a, std::int64_t lda, std::int64_t k, std::int64_t m, T* sums);

}  // namespace refrain::detail
