// gemm(): the one door to matrix products. C[m,n] = epilogue(alpha op(A) op(B) + beta C), row-major.
//
// Operands of f32, f64, f16 or bf16. Sums of 16-bit products are f32 over the whole of k, and so are alpha, beta and the
// bias; C, 16-bit or f32, is rounded once. Operands are widened a cache block at a time, never whole.
//
// The product is cut into tiles by the shapes alone; a tile is a single-threaded library call on our own pool. Bits do
// not depend on the number of threads, and row i of C depends on row i of op(A), on B and on k and n only: never on m
// or on i. That holds because the libraries are only ever called with 24, 48 … 192 rows (see gemm.cpp).
#pragma once

#include <refrain/core/dtype.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace refrain {

// Who multiplies. `builtin` is Refrain's own kernel; oneDNN (not f64; 16-bit operands widened block by block) is there
// where it was built in; Eigen always is; `amx` is for bf16, Refrain's own kernel on the processor's matrix instructions.
// `automatic` chooses by dtype, n and k alone, see gemm.cpp. `cublaslt` and `cudnn` are CUDA's (cuda/product.h,
// convolution.h): gemm() refuses them, as CUDA's kernels refuse those of the CPU.
enum class GemmEngine : std::uint8_t { automatic, builtin, onednn, eigen, amx, cublaslt, cudnn };

// Whether this build can run GemmEngine::onednn.
bool has_onednn();
// Whether this build, processor and system can run GemmEngine::amx.
bool has_amx();

// What is applied to each element of C last.
enum class Activation : std::uint8_t { none, relu, gelu_erf, gelu_tanh };

// A row-major matrix in memory whose rows are `ld` elements apart; op() transposes it when `transposed`.
template <class T>
struct GemmOperand {
  const T* data;
  std::int64_t ld;
  bool transposed = false;
};

// A bias of the operands' type or of the sums', or none.
template <class S>
class GemmBias {
 public:
  GemmBias() = default;
  GemmBias(std::nullptr_t) {}
  GemmBias(const S* values) : narrow_(values) {}
  GemmBias(const accumulator_t<S>* values)
    requires is_half<S>
      : wide_(values) {}
  explicit operator bool() const { return narrow_ || wide_; }
  const S* narrow() const { return narrow_; }
  const accumulator_t<S>* wide() const { return wide_; }

 private:
  const S* narrow_ = nullptr;
  const accumulator_t<S>* wide_ = nullptr;
};

// A product of operands of type S; C is of the same type, or of f32 where S is 16-bit.
template <class S, class C = S>
struct GemmArgs {
  using Sum = accumulator_t<S>;
  std::int64_t m, n, k;
  GemmOperand<S> a, b;  // op(A) is [m, k], op(B) is [k, n]
  C* c;                 // [m, n]; not read when beta is 0. Must not overlap A or B
  std::int64_t ldc;
  Sum alpha = Sum(1), beta = Sum(0);    // alpha 0: A and B are not read
  GemmBias<S> bias = {};                // [n], added to every row
  GemmBias<S> row_bias = {};            // [m], added to every column
  // Reads the value before it as rounded to C's type: an activation rebuilt from pre_activation has the same bits.
  Activation activation = Activation::none;
  C* pre_activation = nullptr;          // [m, n] with rows ldc apart: alpha op(A) op(B) + beta C + biases, for the activation's backward
  C* a_row_sums = nullptr;              // [m]: sums of op(A) over k (a bias's gradient); A must be transposed, split_k set
  // For narrow products over a long k (weight gradients): k is cut into pieces whose sums are added in order. Bits then
  // depend on m, too. Excludes the epilogue.
  bool split_k = false;
  Sum* scratch = nullptr;               // gemm_scratch_size() elements, needed with split_k only
  GemmEngine engine = GemmEngine::automatic;
};

// Elements of scratch, of the sums' type, that a product with split_k and a C of dtype `c` needs; 0 when it is not worth
// splitting.
std::int64_t gemm_scratch_size(std::int64_t m, std::int64_t n, std::int64_t k, DType c);

// Runs on the thread pool. S is float, double, f16 or bf16.
template <class S, class C>
void gemm(const GemmArgs<S, C>& args);

// `count` products of equal shapes, tiled over the pool together. get(i) returns the GemmArgs of product i; all must
// agree in m, n, k. No split_k.
namespace detail {
template <class S, class C>
void gemm_batch(std::int64_t count, GemmArgs<S, C> (*get)(const void* context, std::int64_t i), const void* context);
}
template <class S, class C = S, class F>
void gemm_batch(std::int64_t count, const F& get) {
  detail::gemm_batch<S, C>(
      count, [](const void* context, std::int64_t i) -> GemmArgs<S, C> { return (*static_cast<const F*>(context))(i); }, &get);
}

}  // namespace refrain
