// 2-d convolution and patch embedding, as matrix products over columns (im2col) that are made a bounded chunk at a
// time. Columns are of the products' dtype; sums of 16-bit products are f32 and rounded once.
//
// On CUDA a convolution may be cuDNN's instead. GemmEngine::automatic takes it where it is there and has a deterministic
// algorithm with these very semantics; `cudnn` insists on it, and throws InvalidArgument with the reason where it cannot be;
// `builtin` and `cublaslt` are columns, and say whose products.
//
// Shape letters: B batch, C channels in, O channels out, H W image, P Q window, Y X output, D width, N patches.
#pragma once

#include <refrain/kernels/kernel.h>
#include <refrain/kernels/matmul/gemm.h>

namespace refrain {

// What a convolution's shapes follow from. Groups and dilation are 1.
struct ConvolutionGeometry {
  std::int64_t B, C, H, W, O, P, Q;
  std::int64_t stride = 1, padding = 0;
  std::int64_t Y() const { return (H + 2 * padding - P) / stride + 1; }
  std::int64_t X() const { return (W + 2 * padding - Q) / stride + 1; }
  std::int64_t window() const { return C * P * Q; }
  // Throws InvalidArgument for stride < 1, padding < 0, an empty window or one larger than the padded image.
  void check_valid(std::string_view op) const;
  // Geometry of x[B, C, H, W] and weight[O, C, P, Q].
  static ConvolutionGeometry of(std::string_view op, const Shape& x, const Shape& weight, std::int64_t stride, std::int64_t padding);
  // Elements of scratch: one chunk of columns.
  std::int64_t scratch_size() const;
  // For an x's gradient of dtype `out`: when that is 16-bit, the chunk's images too.
  std::int64_t input_scratch_size(DType out) const;
  // For a weight's gradient of dtype `out`: columns and gradients of a chunk, and sums over its positions.
  std::int64_t weight_scratch_size() const;
  std::int64_t weight_sums_size(DType out) const;
  // Bytes of `workspace` for operands of this dtype; 0 where the device's kernels have no use for one. cuDNN's algorithms are
  // chosen among those that it is enough for, so it follows from shapes alone, like all scratch, where there is no cuDNN too.
  std::int64_t workspace_bytes(DeviceKind target, DType dtype) const;
};

// out[B, O, Y, X] = sum over the window of weight[O, C, P, Q] x[B, C, H, W] + bias[O]; cross-correlation, as usual.
// bias: x's dtype, or f32 where that is 16-bit.
struct Conv2dForward {
  static constexpr std::string_view name = "conv2d";
  In x, weight;
  OptionalIn bias;
  Out out;
  Out scratch;          // [scratch_size()]
  OptionalOut workspace = {};  // u8 [workspace_bytes()]; may share scratch's bytes, as one of the two is used
  std::int64_t stride = 1, padding = 0;
  GemmEngine engine = GemmEngine::automatic;
};
void validate(const Conv2dForward&);
Cost cost(const Conv2dForward&);
void run(Cpu, const Conv2dForward&);
void run(Cuda, const Conv2dForward&);

struct Conv2dBackwardInput {
  static constexpr std::string_view name = "conv2d_backward_input";
  In grad_out, weight;
  Out out;              // [B, C, H, W]
  Out scratch;          // [input_scratch_size()] of accumulator_dtype
  OptionalOut workspace = {};  // as above
  std::int64_t stride = 1, padding = 0;
  GemmEngine engine = GemmEngine::automatic;
};
void validate(const Conv2dBackwardInput&);
Cost cost(const Conv2dBackwardInput&);
void run(Cpu, const Conv2dBackwardInput&);
void run(Cuda, const Conv2dBackwardInput&);

struct Conv2dBackwardWeight {
  static constexpr std::string_view name = "conv2d_backward_weight";
  In grad_out, x;
  Out out;              // [O, C, P, Q], grad_out's dtype, or f32 where that is 16-bit
  Out scratch;          // [weight_scratch_size()]
  Out sums;             // [weight_sums_size()] of accumulator_dtype
  OptionalOut workspace = {};  // as above
  std::int64_t stride = 1, padding = 0;
  GemmEngine engine = GemmEngine::automatic;
};
void validate(const Conv2dBackwardWeight&);
Cost cost(const Conv2dBackwardWeight&);
void run(Cpu, const Conv2dBackwardWeight&);
void run(Cuda, const Conv2dBackwardWeight&);

// out[O] = sum of grad_out[B, O, Y, X] over all but O, in grad_out's dtype, or f32 where that is 16-bit.
struct Conv2dBackwardBias {
  static constexpr std::string_view name = "conv2d_backward_bias";
  In grad_out;
  Out out;
};
void validate(const Conv2dBackwardBias&);
Cost cost(const Conv2dBackwardBias&);
void run(Cpu, const Conv2dBackwardBias&);
void run(Cuda, const Conv2dBackwardBias&);

// Non-overlapping patches: x[B, C, H, W], weight[D, C, P, Q] with P | H and Q | W; N = (H/P)(W/Q), row by row.
struct PatchGeometry {
  std::int64_t B, C, H, W, D, P, Q;
  std::int64_t patches() const { return (H / P) * (W / Q); }
  std::int64_t rows() const { return B * patches(); }
  std::int64_t window() const { return C * P * Q; }
  static PatchGeometry of(std::string_view op, const Shape& x, const Shape& weight);
  // Rows of patches that are laid out at a time.
  std::int64_t chunk_rows() const;
  // Elements of scratch: a chunk of patches; and of sums over its rows, for a weight's gradient of dtype `out`.
  std::int64_t scratch_size() const;
  std::int64_t weight_sums_size(DType out) const;
};

// out[B, N, D] = patch . weight + bias[D]. x may be of any floating dtype: pixels are rounded to out's, which is weight's,
// as patches are laid out (f64 to a 16-bit dtype through f32). bias: out's dtype, or f32 where that is 16-bit.
struct PatchEmbeddingForward {
  static constexpr std::string_view name = "patch_embedding";
  In x, weight;
  OptionalIn bias;
  Out out;
  Out scratch;          // [scratch_size()]
  GemmEngine engine = GemmEngine::automatic;
};
void validate(const PatchEmbeddingForward&);
Cost cost(const PatchEmbeddingForward&);
void run(Cpu, const PatchEmbeddingForward&);
void run(Cuda, const PatchEmbeddingForward&);

struct PatchEmbeddingBackwardInput {
  static constexpr std::string_view name = "patch_embedding_backward_input";
  In grad_out, weight;
  Out out;              // [B, C, H, W], any floating dtype
  Out scratch;          // [scratch_size()] of accumulator_dtype
  GemmEngine engine = GemmEngine::automatic;
};
void validate(const PatchEmbeddingBackwardInput&);
Cost cost(const PatchEmbeddingBackwardInput&);
void run(Cpu, const PatchEmbeddingBackwardInput&);
void run(Cuda, const PatchEmbeddingBackwardInput&);

struct PatchEmbeddingBackwardWeight {
  static constexpr std::string_view name = "patch_embedding_backward_weight";
  In grad_out, x;
  Out out;              // [D, C, P, Q], grad_out's dtype, or f32 where that is 16-bit; so is grad_bias
  OptionalOut grad_bias;
  Out scratch;          // [scratch_size()]
  Out sums;             // [weight_sums_size()] of accumulator_dtype
  GemmEngine engine = GemmEngine::automatic;
};
void validate(const PatchEmbeddingBackwardWeight&);
Cost cost(const PatchEmbeddingBackwardWeight&);
void run(Cpu, const PatchEmbeddingBackwardWeight&);
void run(Cuda, const PatchEmbeddingBackwardWeight&);

}  // namespace refrain
