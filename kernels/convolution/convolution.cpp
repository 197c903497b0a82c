// Geometry, validation and cost of the convolution kernels.
#include <refrain/kernels/convolution/convolution.h>
#include <refrain/kernels/matmul/product_dtypes.h>

#include <algorithm>

namespace refrain {

namespace {

void check_tensor(std::string_view kernel, std::string_view argument, const TensorArg& t, const Shape& shape, DType dtype) {
  check_shape(kernel, argument, t, shape);
  check_dtype(kernel, argument, t, dtype);
  check_contiguous(kernel, argument, t);
}

void check_workspace(std::string_view kernel, const OptionalOut& workspace) {
  if (!workspace) return;
  check_dtype(kernel, "workspace", workspace, DType::u8);
  check_contiguous(kernel, "workspace", workspace);
}

// A result or bias that may be wider than the operands.
void check_wide(std::string_view kernel, std::string_view argument, const TensorArg& t, const Shape& shape, DType operands) {
  check_shape(kernel, argument, t, shape);
  check_own_or_wide(kernel, argument, t, operands);
  check_contiguous(kernel, argument, t);
}

void check_conv(std::string_view kernel, const ConvolutionGeometry& g, const TensorArg& x, const TensorArg& y, DType dtype) {
  check_floating(kernel, "output", y);
  check_tensor(kernel, "x", x, {g.B, g.C, g.H, g.W}, dtype);
  check_tensor(kernel, "output", y, {g.B, g.O, g.Y(), g.X()}, dtype);
}

void check_patches(std::string_view kernel, const PatchGeometry& g, const TensorArg& x, const TensorArg& y) {
  check_floating(kernel, "output", y);
  check_floating(kernel, "x", x);
  check_tensor(kernel, "x", x, {g.B, g.C, g.H, g.W}, x.dtype());
  check_tensor(kernel, "output", y, {g.B, g.patches(), g.D}, y.dtype());
}

Cost cost_of(const TensorArg& x, const TensorArg& weight, const TensorArg& y, std::int64_t window) {
  return {.flops = 2 * double(y.numel()) * double(window), .bytes = x.bytes() + weight.bytes() + y.bytes()};
}

std::int64_t window_of(const TensorArg& weight) { return weight.dim(1) * weight.dim(2) * weight.dim(3); }

}  // namespace

std::int64_t ConvolutionGeometry::workspace_bytes(DeviceKind target, DType dtype) const {
  if (target != DeviceKind::cuda) return 0;
  // A copy of each tensor, since cuDNN changes layouts for tensor cores, and something for tables and partial sums.
  constexpr std::int64_t kTables = 1 << 20, kMost = 32 << 20;
  constexpr std::int64_t kAlignment = 256;  // what cuDNN is given; the arena gives less
  const std::int64_t copies = (B * C * H * W + O * window() + B * O * Y() * X()) * std::int64_t(size_of(dtype));
  return std::min((copies + kTables + kAlignment - 1) / kAlignment * kAlignment, kMost) + kAlignment;
}

void ConvolutionGeometry::check_valid(std::string_view op) const {
  check(stride >= 1, op, ": stride must be at least 1, got ", stride);
  check(padding >= 0, op, ": padding must be at least 0, got ", padding);
  check(P >= 1 && Q >= 1, op, ": the window must not be empty, got ", P, " x ", Q);
  check(P <= H + 2 * padding && Q <= W + 2 * padding, op, ": window ", P, " x ", Q, " is larger than the image ", H, " x ", W, " with padding ",
        padding);
}

ConvolutionGeometry ConvolutionGeometry::of(std::string_view op, const Shape& x, const Shape& weight, std::int64_t stride, std::int64_t padding) {
  check(x.size() == 4, op, ": x must be [batch, channels, height, width], got ", x);
  check(weight.size() == 4, op, ": weight must be [out, in, height, width], got ", weight);
  check(x[1] == weight[1], op, ": x has ", x[1], " channels, weight expects ", weight[1]);
  const ConvolutionGeometry g{.B = x[0], .C = x[1], .H = x[2], .W = x[3], .O = weight[0], .P = weight[2], .Q = weight[3], .stride = stride, .padding = padding};
  g.check_valid(op);
  return g;
}

void validate(const Conv2dForward& k) {
  const ConvolutionGeometry g = ConvolutionGeometry::of(k.name, k.x.shape(), k.weight.shape(), k.stride, k.padding);
  const DType dtype = k.out.dtype();
  check_conv(k.name, g, k.x, k.out, dtype);
  check_tensor(k.name, "weight", k.weight, {g.O, g.C, g.P, g.Q}, dtype);
  if (k.bias) check_wide(k.name, "bias", k.bias, {g.O}, dtype);
  check_tensor(k.name, "scratch", k.scratch, {g.scratch_size()}, dtype);
  check_workspace(k.name, k.workspace);
}

Cost cost(const Conv2dForward& k) { return cost_of(k.x, k.weight, k.out, window_of(k.weight)); }

void validate(const Conv2dBackwardInput& k) {
  const ConvolutionGeometry g = ConvolutionGeometry::of(k.name, k.out.shape(), k.weight.shape(), k.stride, k.padding);
  const DType dtype = k.out.dtype();
  check_conv(k.name, g, k.out, k.grad_out, dtype);
  check_tensor(k.name, "weight", k.weight, {g.O, g.C, g.P, g.Q}, dtype);
  check_tensor(k.name, "scratch", k.scratch, {g.input_scratch_size(dtype)}, accumulator_dtype(dtype));
  check_workspace(k.name, k.workspace);
}

Cost cost(const Conv2dBackwardInput& k) { return cost_of(k.out, k.weight, k.grad_out, window_of(k.weight)); }

void validate(const Conv2dBackwardWeight& k) {
  const ConvolutionGeometry g = ConvolutionGeometry::of(k.name, k.x.shape(), k.out.shape(), k.stride, k.padding);
  const DType dtype = k.grad_out.dtype();
  check_conv(k.name, g, k.x, k.grad_out, dtype);
  check_wide(k.name, "out", k.out, {g.O, g.C, g.P, g.Q}, dtype);
  check_tensor(k.name, "scratch", k.scratch, {g.weight_scratch_size()}, dtype);
  check_tensor(k.name, "sums", k.sums, {g.weight_sums_size(k.out.dtype())}, accumulator_dtype(dtype));
  check_workspace(k.name, k.workspace);
}

Cost cost(const Conv2dBackwardWeight& k) { return cost_of(k.x, k.out, k.grad_out, window_of(k.out)); }

void validate(const Conv2dBackwardBias& k) {
  check_floating(k.name, "grad_out", k.grad_out);
  check(k.grad_out.num_dims() == 4, k.name, ": grad_out must be [batch, out, height, width], got ", k.grad_out.shape());
  check_contiguous(k.name, "grad_out", k.grad_out);
  check_wide(k.name, "out", k.out, {k.grad_out.dim(1)}, k.grad_out.dtype());
}

Cost cost(const Conv2dBackwardBias& k) { return {.flops = double(k.grad_out.numel()), .bytes = k.grad_out.bytes() + k.out.bytes()}; }

PatchGeometry PatchGeometry::of(std::string_view op, const Shape& x, const Shape& weight) {
  check(x.size() == 4, op, ": x must be [batch, channels, height, width], got ", x);
  check(weight.size() == 4, op, ": weight must be [width, channels, patch height, patch width], got ", weight);
  check(x[1] == weight[1], op, ": x has ", x[1], " channels, weight expects ", weight[1]);
  check(weight[2] >= 1 && weight[3] >= 1 && x[2] % weight[2] == 0 && x[3] % weight[3] == 0, op, ": image ", x[2], " x ", x[3],
        " is not a whole number of patches ", weight[2], " x ", weight[3]);
  return {.B = x[0], .C = x[1], .H = x[2], .W = x[3], .D = weight[0], .P = weight[2], .Q = weight[3]};
}

void validate(const PatchEmbeddingForward& k) {
  const PatchGeometry g = PatchGeometry::of(k.name, k.x.shape(), k.weight.shape());
  const DType dtype = k.out.dtype();
  check_patches(k.name, g, k.x, k.out);
  check_tensor(k.name, "weight", k.weight, {g.D, g.C, g.P, g.Q}, dtype);
  if (k.bias) check_wide(k.name, "bias", k.bias, {g.D}, dtype);
  check_tensor(k.name, "scratch", k.scratch, {g.scratch_size()}, dtype);
}

Cost cost(const PatchEmbeddingForward& k) { return cost_of(k.x, k.weight, k.out, window_of(k.weight)); }

void validate(const PatchEmbeddingBackwardInput& k) {
  const PatchGeometry g = PatchGeometry::of(k.name, k.out.shape(), k.weight.shape());
  const DType dtype = k.grad_out.dtype();
  check_patches(k.name, g, k.out, k.grad_out);
  check_tensor(k.name, "weight", k.weight, {g.D, g.C, g.P, g.Q}, dtype);
  check_tensor(k.name, "scratch", k.scratch, {g.scratch_size()}, accumulator_dtype(dtype));
}

Cost cost(const PatchEmbeddingBackwardInput& k) { return cost_of(k.out, k.weight, k.grad_out, window_of(k.weight)); }

void validate(const PatchEmbeddingBackwardWeight& k) {
  const PatchGeometry g = PatchGeometry::of(k.name, k.x.shape(), k.out.shape());
  const DType dtype = k.grad_out.dtype();
  check_patches(k.name, g, k.x, k.grad_out);
  check_wide(k.name, "out", k.out, {g.D, g.C, g.P, g.Q}, dtype);
  if (k.grad_bias.defined()) check_tensor(k.name, "grad_bias", k.grad_bias, {g.D}, k.out.dtype());
  check_tensor(k.name, "scratch", k.scratch, {g.scratch_size()}, dtype);
  check_tensor(k.name, "sums", k.sums, {g.weight_sums_size(k.out.dtype())}, accumulator_dtype(dtype));
}

Cost cost(const PatchEmbeddingBackwardWeight& k) { return cost_of(k.x, k.out, k.grad_out, window_of(k.out)); }

}  // namespace refrain
