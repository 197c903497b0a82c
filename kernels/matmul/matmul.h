// Matrix products of tensors, all through gemm(): batched products, and the linear layer forward and backward.
// Operands are of one floating dtype. Sums of 16-bit products are f32 and rounded once, into a result of the operands'
// dtype or, where a kernel says so, of f32.
#pragma once

#include <refrain/kernels/kernel.h>
#include <refrain/kernels/matmul/gemm.h>

#include <optional>

namespace refrain {

// How gemm() reads a matrix whose elements are these strides apart.
struct GemmLayout {
  std::int64_t ld;
  bool transposed;
};
// Empty when neither dim has unit stride, or rows overlap: such a matrix must be copied first.
std::optional<GemmLayout> gemm_layout(std::int64_t rows, std::int64_t cols, std::int64_t row_stride, std::int64_t col_stride);
// The last two dims of a tensor seen so. Throws for fewer than two dims.
std::optional<GemmLayout> gemm_layout(const Shape& shape, const Strides& strides);

// Bytes of `workspace` with which products of these sizes run well on a device of this kind; 0 where they need none. A CUDA
// kernel takes whatever it is given, also nothing.
std::int64_t product_workspace_bytes(DeviceKind target, std::int64_t m, std::int64_t n, std::int64_t k);

// out[…, M, N] = alpha a[…, M, K] b[…, K, N] + beta out. out: the operands' dtype, or f32. The batch dims of a and b broadcast to those of
// out. a and b may be transposed or have long rows (gemm_layout() finds a way to read them); out is contiguous.
struct Matmul {
  static constexpr std::string_view name = "matmul";
  In a, b;
  Out out;
  double alpha = 1, beta = 0;   // beta 0: out is not read
  OptionalOut workspace = {};   // u8 [product_workspace_bytes()]
  GemmEngine engine = GemmEngine::automatic;
};
void validate(const Matmul&);
Cost cost(const Matmul&);
void run(Cpu, const Matmul&);
void run(Cuda, const Matmul&);

// out[…, N] = activation(x[…, K] weight[N, K]ᵀ + bias[N]). All contiguous. bias: x's dtype, or f32.
struct LinearForward {
  static constexpr std::string_view name = "linear";
  In x, weight;
  OptionalIn bias;
  Out out;
  Activation activation = Activation::none;
  OptionalOut pre_activation;   // [..., N]: what the activation's backward reads
  OptionalOut workspace = {};   // u8 [product_workspace_bytes()]
  GemmEngine engine = GemmEngine::automatic;
};
void validate(const LinearForward&);
Cost cost(const LinearForward&);
void run(Cpu, const LinearForward&);
void run(Cuda, const LinearForward&);

// out[…, K] = grad_out[…, N] weight[N, K]: the gradient of linear's x.
struct LinearBackwardInput {
  static constexpr std::string_view name = "linear_backward_input";
  In grad_out, weight;
  Out out;
  OptionalOut workspace = {};   // u8 [product_workspace_bytes()]
  GemmEngine engine = GemmEngine::automatic;
};
void validate(const LinearBackwardInput&);
Cost cost(const LinearBackwardInput&);
void run(Cpu, const LinearBackwardInput&);
void run(Cuda, const LinearBackwardInput&);

// out[N, K] = grad_outᵀ x + beta out and grad_bias[N] = sum of grad_out over its rows: the gradients of linear's weight and
// bias, both of grad_out's dtype or f32. With a beta that is not 0 out is of the sums' type: parts are rounded once, in the
// end. grad_bias is always written.
struct LinearBackwardWeight {
  static constexpr std::string_view name = "linear_backward_weight";
  In grad_out, x;
  Out out;
  OptionalOut grad_bias;
  OptionalOut scratch;          // [scratch_size()] of accumulator_dtype; may be absent when that is 0
  double beta = 0;              // 0: out is not read
  OptionalOut workspace = {};   // u8 [product_workspace_bytes()]
  GemmEngine engine = GemmEngine::automatic;

  // For R rows of x, N outputs, K inputs and an out of this dtype.
  static std::int64_t scratch_size(DeviceKind target, std::int64_t R, std::int64_t N, std::int64_t K, DType out) {
    return target == DeviceKind::cuda ? 0 : gemm_scratch_size(N, K, R, out);  // CUDA's kernels have the workspace
  }
};
void validate(const LinearBackwardWeight&);
Cost cost(const LinearBackwardWeight&);
void run(Cpu, const LinearBackwardWeight&);
void run(Cuda, const LinearBackwardWeight&);

// out[N] = sum of grad_out[…, N] over all but its last dim: the gradient of a bias whose weight is frozen.
// out: grad_out's dtype, or f32.
struct LinearBackwardBias {
  static constexpr std::string_view name = "linear_backward_bias";
  In grad_out;
  Out out;
  OptionalOut workspace = {};   // u8 [product_workspace_bytes()]
};
void validate(const LinearBackwardBias&);
Cost cost(const LinearBackwardBias&);
void run(Cpu, const LinearBackwardBias&);
void run(Cuda, const LinearBackwardBias&);

}  // namespace refrain
