// Matrix products on CUDA, as the families' host code asks for them: C[m,n] = epilogue(alpha op(A) op(B) + beta C), row-major,
// for a batch of equal shapes. Addresses are the device's. Needs no CUDA header.
#pragma once

#include <refrain/core/dtype.h>
#include <refrain/core/stream.h>
#include <refrain/kernels/matmul/gemm.h>

#include <array>
#include <string_view>

namespace refrain::cuda {

// A batch is numbered over up to three dims, the last of them fastest; a stride of 0 repeats an operand.
using BatchDims = std::array<std::int64_t, 3>;

struct ProductOperand {
  const void* data = nullptr;
  std::int64_t ld = 1;
  bool is_transposed = false;
  BatchDims batch_strides = {0, 0, 0};
};

struct Product {
  std::string_view name;                  // the kernel's, in messages
  DType dtype;                            // of the operands
  std::int64_t m, n, k;
  ProductOperand a, b;                    // op(A) is [m, k], op(B) is [k, n]
  void* c;                                // not read when beta is 0
  DType c_dtype;                          // the operands', or f32
  std::int64_t ldc;
  BatchDims batch = {1, 1, 1};
  std::int64_t c_batch_stride = 0;        // from one product of the batch to the next
  double alpha = 1, beta = 0;             // alpha 0: A and B are not read
  const void* bias = nullptr;             // [n], added to every row
  const void* row_bias = nullptr;         // [m], added to every column
  DType bias_dtype = DType::f32;          // of both: the operands', or f32
  // Reads the value before it as rounded to C's type: an activation rebuilt from pre_activation has the same bits.
  Activation activation = Activation::none;
  void* pre_activation = nullptr;         // laid out as C
  bool may_split_k = false;               // sums over pieces of k, added in order: bits then depend on m, too
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
  GemmEngine engine = GemmEngine::automatic;
  std::int64_t num_products() const { return batch[0] * batch[1] * batch[2]; }
};

// By Refrain's own kernels where the engine is `builtin`, by cuBLASLt where it is `cublaslt`, by whichever can where it is
// `automatic`, cuBLASLt first. Throws InvalidArgument for other engines, and for `cublaslt` where it cannot, with the reason.
void run_product(const Cuda& device, const Product& product);

// Refrain's own: tensor cores for 16-bit operands, f32 and f64 in their own precision. Any sizes and alignments.
void run_own_product(const Cuda& device, const Product& product);
// False, and nothing done, where the library is missing and for what it does not offer with these very semantics. Deterministic: no atomics, partial sums
// in f32.
bool run_cublaslt_product(const Cuda& device, const Product& product);
// c = activation(pre), both [rows, n] with rows ldc apart; c may be pre.
void run_activation(const Cuda& device, std::string_view name, DType dtype, Activation activation, const void* pre, void* c, std::int64_t rows,
                    std::int64_t n, std::int64_t ldc);

// sums[cols] = sums of x[rows, cols], contiguous, over its rows, in f32 (f64 for f64) and one fixed order. With a workspace the
// rows are summed in pieces side by side.
struct ColumnSums {
  std::string_view name;
  DType dtype;
  const void* x;
  std::int64_t rows, cols;
  void* sums;
  DType sums_dtype;                       // x's, or f32
  void* workspace = nullptr;
  std::int64_t workspace_bytes = 0;
};
void run_column_sums(const Cuda& device, const ColumnSums& k);

}  // namespace refrain::cuda
