// The tiles of a product and who computes them. Private to gemm.cpp and the engines.
#pragma once

#include <refrain/kernels/matmul/gemm.h>

namespace refrain::detail {

// One single-threaded library call: C[m,n] = alpha op(A) op(B) + beta C with m, n, k > 0, C of the sums' type.
template <class S>
struct TileCall {
  using Sum = accumulator_t<S>;
  std::int64_t m, n, k;
  Sum alpha;
  GemmOperand<S> a, b;
  Sum beta;
  Sum* c;
  std::int64_t ldc;
};

void eigen_tile(const TileCall<float>& call);
void eigen_tile(const TileCall<double>& call);
void onednn_tile(const TileCall<float>& call);
// bias[n], or null, is added; only with beta 0.
void builtin_tile(const TileCall<float>& call, const float* bias);
void builtin_tile(const TileCall<double>& call, const double* bias);
void builtin_tile(const TileCall<f16>& call, const float* bias);
void builtin_tile(const TileCall<bf16>& call, const float* bias);

// Adds the biases and applies the activation to a tile that was just computed. Biases may be null, so may `pre`.
template <class T>
void apply_epilogue(T* c, T* pre, std::int64_t ldc, std::int64_t m, std::int64_t n, const T* bias, const T* row_bias, Activation activation);

// How a tile's sums become C: alpha sums + beta C + biases, rounded to C's type and kept in `pre`, then the activation.
// C is f32, f16 or bf16; biases and pre may be null.
template <class C>
struct Finish {
  float alpha, beta;
  const float* bias;
  const float* row_bias;
  Activation activation;
  C* c;
  C* pre;
  std::int64_t ldc;
};
template <class C>
void finish_tile(const Finish<C>& finish, const float* sums, std::int64_t ld, std::int64_t m, std::int64_t n);

// sums[i] = sum over k of A[k, i] for i < m, in an order that depends on k alone. C is S or, for a 16-bit S, float.
template <class S, class C>
void column_sums(const S* a, std::int64_t lda, std::int64_t k, std::int64_t m, C* sums);

// A tile by AMX: call.c is room for its f32 sums, whose rows and columns are whole blocks of 32; they go to C through
// `finish`, block by block. call.alpha and beta are not looked at.
template <class C>
void amx_tile(const TileCall<bf16>& call, const Finish<C>& finish);

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

template <class T>
const T* element(const GemmOperand<T>& operand, std::int64_t row, std::int64_t col) {
  return operand.data + (operand.transposed ? col * operand.ld + row : row * operand.ld + col);
}

// The block i x j of op(A)[:, p] op(B)[p, :], to be put at c.
template <class S, class C>
TileCall<S> block_of(const GemmArgs<S, C>& args, Range i, Range j, Range p, accumulator_t<S> beta, accumulator_t<S>* c, std::int64_t ldc) {
  return {.m = i.size(), .n = j.size(), .k = p.size(), .alpha = args.alpha,
          .a = {element(args.a, i.begin, p.begin), args.a.ld, args.a.transposed},
          .b = {element(args.b, p.begin, j.begin), args.b.ld, args.b.transposed},
          .beta = beta, .c = c, .ldc = ldc};
}

// A block of a tile's size by oneDNN or Eigen, with each row's bits its own unless args.split_k.
template <class T>
void library_block(const GemmArgs<T>& args, Range i, Range j, Range p, T beta, T* c, std::int64_t ldc);

// Bounds of a tile of 16-bit operands: its f32 sums are kept in a buffer of the thread's own until they are rounded.
constexpr std::int64_t kMaxTileRows = 768;
constexpr std::int64_t kMaxTileCols = 384;
constexpr std::int64_t kMaxTileSums = kMaxTileRows * 192;

// The tile i x j over p of a 16-bit product: into C, or into `partial` (f32, m x n and then m row sums) when not null.
template <class S, class C>
void half_tile(const GemmArgs<S, C>& args, Range i, Range j, Range p, float* partial);

}  // namespace refrain::detail
