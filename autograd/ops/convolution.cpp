#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/convolution.h>
#include <refrain/autograd/ops/product_weight.h>
#include <refrain/autograd/ops/product_workspace.h>
#include <refrain/autograd/precision.h>
#include <refrain/kernels/convolution/convolution.h>
#include <refrain/kernels/matmul/matmul.h>

#include <algorithm>

namespace refrain {

namespace {

Tensor contiguous_or_undefined(const Tensor& t) { return t.defined() ? contiguous_values(t) : t; }

Tensor new_workspace(std::int64_t size, DType dtype, const Device& device) {
  const KindScope kind(MemoryKind::workspace);
  return empty({size}, dtype, device);
}

// What a convolution works in: scratch and, on a device whose kernels may want one, a workspace over the same bytes.
struct Rooms {
  Tensor scratch, workspace;
  Rooms(std::int64_t size, DType dtype, std::int64_t workspace_bytes, const Device& device) {
    if (workspace_bytes == 0) {
      scratch = new_workspace(size, dtype, device);
      return;
    }
    const std::int64_t bytes = std::max(workspace_bytes, size * std::int64_t(size_of(dtype)));
    workspace = new_workspace(bytes, DType::u8, device);
    scratch = Tensor(workspace.storage(), device, dtype, {size}, contiguous_strides({size}), 0);
  }
};

DType dtype_or(const Tensor& t, DType other) { return t.defined() ? t.dtype() : other; }

struct Conv2d {
  static constexpr std::string_view name = "conv2d";
  struct Saved {
    SavedTensor x, weight;
    Shape x_shape, weight_shape;
    DType weight_dtype = DType::f32, bias_dtype = DType::f32;
    std::int64_t stride = 1, padding = 0;
    ConvolutionGeometry geometry() const { return ConvolutionGeometry::of(name, x_shape, weight_shape, stride, padding); }
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x, const Tensor& weight, const Tensor& bias, std::int64_t stride,
                                          std::int64_t padding) {
    const ConvolutionGeometry g = ConvolutionGeometry::of(name, x.shape(), weight.shape(), stride, padding);
    const Tensor out = op_output({g.B, g.O, g.Y(), g.X()}, x.dtype(), x.device());
    if (must_compute(out)) {
      const Tensor x_values = contiguous_values(x), weight_values = weight_as(name, weight, x.dtype()), bias_values = contiguous_or_undefined(bias);
      const Rooms rooms(g.scratch_size(), x.dtype(), g.workspace_bytes(x.device().target(), x.dtype()), x.device());
      launch(Conv2dForward{.x = x_values, .weight = weight_values, .bias = bias_values, .out = out, .scratch = rooms.scratch,
                           .workspace = rooms.workspace, .stride = stride, .padding = padding});
    }
    return {out, {.x = needs[1] ? x : Tensor(), .weight = needs[0] ? weight : Tensor(), .x_shape = x.shape(), .weight_shape = weight.shape(),
                  .weight_dtype = weight.dtype(), .bias_dtype = dtype_or(bias, weight.dtype()), .stride = stride, .padding = padding}};
  }

  static Grads<3> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    Tensor grad_x, grad_weight, grad_bias;
    const ConvolutionGeometry g = saved.geometry();
    const Device& device = grad_out.device();
    const std::int64_t workspace_bytes = g.workspace_bytes(device.target(), grad_out.dtype());
    if (needs[2]) {
      grad_bias = empty({grad_out.dim(1)}, saved.bias_dtype, device);
      launch(Conv2dBackwardBias{.grad_out = grad_out, .out = grad_bias});
    }
    if (needs[1]) {
      const DType dtype = saved.weight_dtype;
      grad_weight = empty(saved.weight_shape, dtype, device);
      const Tensor x = contiguous_values(saved.x.get());
      const Rooms rooms(g.weight_scratch_size(), grad_out.dtype(), workspace_bytes, device);
      launch(Conv2dBackwardWeight{.grad_out = grad_out, .x = x, .out = grad_weight, .scratch = rooms.scratch,
                                  .sums = new_workspace(g.weight_sums_size(dtype), accumulator_dtype(dtype), device),
                                  .workspace = rooms.workspace, .stride = saved.stride, .padding = saved.padding});
    }
    if (needs[0]) {
      grad_x = empty(saved.x_shape, grad_out.dtype(), device);
      const DType dtype = grad_out.dtype();
      const Tensor weight = weight_as(name, saved.weight.get(), dtype);
      const Rooms rooms(g.input_scratch_size(dtype), accumulator_dtype(dtype), workspace_bytes, device);
      launch(Conv2dBackwardInput{.grad_out = grad_out, .weight = weight, .out = grad_x,
                                 .scratch = rooms.scratch, .workspace = rooms.workspace, .stride = saved.stride, .padding = saved.padding});
    }
    return {grad_x, grad_weight, grad_bias};
  }
};

struct PatchEmbedding {
  static constexpr std::string_view name = "patch_embedding";
  struct Saved {
    SavedTensor x, weight;
    Shape x_shape, weight_shape;
    DType x_dtype = DType::f32, weight_dtype = DType::f32, bias_dtype = DType::f32;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x, const Tensor& weight, const Tensor& bias, DType dtype) {
    const PatchGeometry g = PatchGeometry::of(name, x.shape(), weight.shape());
    const Tensor out = op_output({g.B, g.patches(), g.D}, dtype, x.device());
    if (must_compute(out)) {
      launch(PatchEmbeddingForward{.x = contiguous_values(x), .weight = weight_as(name, weight, dtype), .bias = contiguous_or_undefined(bias), .out = out,
                                   .scratch = new_workspace(g.scratch_size(), dtype, x.device())});
    }
    return {out, {.x = needs[1] ? x : Tensor(), .weight = needs[0] ? weight : Tensor(), .x_shape = x.shape(), .weight_shape = weight.shape(),
                  .x_dtype = x.dtype(), .weight_dtype = weight.dtype(), .bias_dtype = dtype_or(bias, weight.dtype())}};
  }

  static Grads<3> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    Tensor grad_x, grad_weight, grad_bias;
    const PatchGeometry g = PatchGeometry::of(name, saved.x_shape, saved.weight_shape);
    const Device& device = grad_out.device();
    if (needs[2]) grad_bias = empty({g.D}, saved.bias_dtype, device);
    const bool is_one_pass = needs[1] && saved.bias_dtype == saved.weight_dtype;
    if (needs[1]) {
      const DType dtype = saved.weight_dtype;
      grad_weight = empty(saved.weight_shape, dtype, device);
      launch(PatchEmbeddingBackwardWeight{.grad_out = grad_out, .x = contiguous_values(saved.x.get()), .out = grad_weight,
                                          .grad_bias = is_one_pass ? grad_bias : Tensor(),
                                          .scratch = new_workspace(g.scratch_size(), grad_out.dtype(), device),
                                          .sums = new_workspace(g.weight_sums_size(dtype), accumulator_dtype(dtype), device)});
    }
    if (needs[2] && !is_one_pass) {
      launch(LinearBackwardBias{.grad_out = grad_out, .out = grad_bias, .workspace = column_sums_workspace(device, g.rows(), g.D)});
    }
    if (needs[0]) {
      const DType dtype = grad_out.dtype();
      grad_x = empty(saved.x_shape, saved.x_dtype, device);
      launch(PatchEmbeddingBackwardInput{.grad_out = grad_out, .weight = weight_as(name, saved.weight.get(), dtype), .out = grad_x,
                                         .scratch = new_workspace(g.scratch_size(), accumulator_dtype(dtype), device)});
    }
    return {grad_x, grad_weight, grad_bias};
  }
};

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, std::int64_t stride, std::int64_t padding) {
  return apply<Conv2d>(x, weight, bias, stride, padding);
}

Tensor patch_embedding(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return apply<PatchEmbedding>(x, weight, bias, autocast_dtype_or(weight.dtype()));
}

}  // namespace refrain
