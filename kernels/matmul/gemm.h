// gemm(): the one door to matrix products. C[m,n] = epilogue(alpha op(A) op(B) + beta C), row-major, f32 and f64.
//
// The product is cut into tiles by the shapes alone; a tile is a single-threaded library call on our own pool. Bits do
// not depend on the number of threads, and row i of C depends on row i of op(A), on B and on k and n only: never on m
// or on i. That holds because the libraries are only ever called with 24, 48 … 192 rows (see gemm.cpp).
#pragma once

#include <cstdint>

namespace refrain {

// Who multiplies. `builtin` is Refrain's own kernel; oneDNN (f32 only) is there where it was built in; Eigen always is.
// `automatic` chooses by dtype, n and k alone, see gemm.cpp.
enum class GemmEngine : std::uint8_t { automatic, builtin, onednn, eigen };

// Whether this build can run GemmEngine::onednn.
bool has_onednn();

// What is applied to each element of C last.
enum class Activation : std::uint8_t { none, relu, gelu_erf, gelu_tanh };

// A row-major matrix in memory whose rows are `ld` elements apart; op() transposes it when `transposed`.
template <class T>
struct GemmOperand {
  const T* data;
  std::int64_t ld;
  bool transposed = false;
};

template <class T>
struct GemmArgs {
  std::int64_t m, n, k;
  GemmOperand<T> a, b;  // op(A) is [m, k], op(B) is [k, n]
  T* c;                 // [m, n]; not read when beta is 0. Must not overlap A or B
  std::int64_t ldc;
  T alpha = T(1), beta = T(0);          // alpha 0: A and B are not read
  const T* bias = nullptr;              // [n], added to every row
  Activation activation = Activation::none;
  T* pre_activation = nullptr;          // [m, n] with rows ldc apart: alpha op(A) op(B) + beta C + bias, for the activation's backward
  T* a_row_sums = nullptr;              // [m]: sums of op(A) over k (a bias's gradient); A must be transposed, split_k set
  // For narrow products over a long k (weight gradients): k is cut into pieces whose sums are added in order. Bits then
  // depend on m, too. Excludes the epilogue.
  bool split_k = false;
  T* scratch = nullptr;                 // gemm_scratch_size() elements, needed with split_k only
  GemmEngine engine = GemmEngine::automatic;
};

// Elements of scratch a product with split_k needs; 0 when it is not worth splitting.
std::int64_t gemm_scratch_size(std::int64_t m, std::int64_t n, std::int64_t k);

// Runs on the thread pool. T is float or double.
template <class T>
void gemm(const GemmArgs<T>& args);

// `count` products of equal shapes, tiled over the pool together. get(i) returns the GemmArgs of product i; all must
// agree in m, n, k. No split_k.
namespace detail {
template <class T>
void gemm_batch(std::int64_t count, GemmArgs<T> (*get)(const void* context, std::int64_t i), const void* context);
}
template <class T, class F>
void gemm_batch(std::int64_t count, const F& get) {
  detail::gemm_batch<T>(
      count, [](const void* context, std::int64_t i) -> GemmArgs<T> { return (*static_cast<const F*>(context))(i); }, &get);
}

}  // namespace refrain
