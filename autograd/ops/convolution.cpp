#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/convolution.h>
#include <refrain/kernels/convolution/convolution.h>
#include <refrain/kernels/matmul/matmul.h>

namespace refrain {

namespace {

Tensor contiguous_or_undefined(const Tensor& t) { return t.defined() ? contiguous_values(t) : t; }

Tensor workspace(std::int64_t size, const Tensor& like) {
  const KindScope kind(MemoryKind::workspace);
  return empty({size}, like.dtype(), like.device());
}

struct Conv2d {
  static constexpr std::string_view name = "conv2d";
  struct Saved {
    SavedTensor x, weight;
    Shape x_shape, weight_shape;
    std::int64_t stride = 1, padding = 0;
    ConvolutionGeometry geometry() const { return ConvolutionGeometry::of(name, x_shape, weight_shape, stride, padding); }
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x, const Tensor& weight, const Tensor& bias, std::int64_t stride,
                                          std::int64_t padding) {
    const ConvolutionGeometry g = ConvolutionGeometry::of(name, x.shape(), weight.shape(), stride, padding);
    const Tensor out = op_output({g.B, g.O, g.Y(), g.X()}, x.dtype(), x.device());
    launch(Conv2dForward{.x = contiguous_values(x), .weight = contiguous_values(weight), .bias = contiguous_or_undefined(bias), .out = out,
                         .scratch = workspace(g.scratch_size(), x), .stride = stride, .padding = padding});
    return {out, {.x = needs[1] ? x : Tensor(), .weight = needs[0] ? weight : Tensor(), .x_shape = x.shape(), .weight_shape = weight.shape(),
                  .stride = stride, .padding = padding}};
  }

  static Grads<3> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    Tensor grad_x, grad_weight, grad_bias;
    const ConvolutionGeometry g = saved.geometry();
    if (needs[2]) {
      grad_bias = empty({grad_out.dim(1)}, grad_out.dtype(), grad_out.device());
      launch(Conv2dBackwardBias{.grad_out = grad_out, .out = grad_bias});
    }
    if (needs[1]) {
      grad_weight = empty(saved.weight_shape, grad_out.dtype(), grad_out.device());
      launch(Conv2dBackwardWeight{.grad_out = grad_out, .x = contiguous_values(saved.x.get()), .out = grad_weight,
                                  .scratch = workspace(g.weight_scratch_size(), grad_out), .stride = saved.stride, .padding = saved.padding});
    }
    if (needs[0]) {
      grad_x = empty(saved.x_shape, grad_out.dtype(), grad_out.device());
      launch(Conv2dBackwardInput{.grad_out = grad_out, .weight = contiguous_values(saved.weight.get()), .out = grad_x,
                                 .scratch = workspace(g.scratch_size(), grad_out), .stride = saved.stride, .padding = saved.padding});
    }
    return {grad_x, grad_weight, grad_bias};
  }
};

struct PatchEmbedding {
  static constexpr std::string_view name = "patch_embedding";
  struct Saved {
    SavedTensor x, weight;
    Shape x_shape, weight_shape;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x, const Tensor& weight, const Tensor& bias) {
    const PatchGeometry g = PatchGeometry::of(name, x.shape(), weight.shape());
    const Tensor out = op_output({g.B, g.patches(), g.D}, x.dtype(), x.device());
    launch(PatchEmbeddingForward{.x = contiguous_values(x), .weight = contiguous_values(weight), .bias = contiguous_or_undefined(bias), .out = out,
                                 .scratch = workspace(g.scratch_size(), x)});
    return {out, {.x = needs[1] ? x : Tensor(), .weight = needs[0] ? weight : Tensor(), .x_shape = x.shape(), .weight_shape = weight.shape()}};
  }

  static Grads<3> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    Tensor grad_x, grad_weight, grad_bias;
    const PatchGeometry g = PatchGeometry::of(name, saved.x_shape, saved.weight_shape);
    if (needs[2]) grad_bias = empty({g.D}, grad_out.dtype(), grad_out.device());
    if (needs[1]) {
      grad_weight = empty(saved.weight_shape, grad_out.dtype(), grad_out.device());
      launch(PatchEmbeddingBackwardWeight{.grad_out = grad_out, .x = contiguous_values(saved.x.get()), .out = grad_weight, .grad_bias = grad_bias,
                                          .scratch = workspace(g.weight_scratch_size(), grad_out)});
    } else if (needs[2]) {
      launch(LinearBackwardBias{.grad_out = grad_out, .out = grad_bias});
    }
    if (needs[0]) {
      grad_x = empty(saved.x_shape, grad_out.dtype(), grad_out.device());
      launch(PatchEmbeddingBackwardInput{.grad_out = grad_out, .weight = contiguous_values(saved.weight.get()), .out = grad_x,
                                         .scratch = workspace(g.scratch_size(), grad_out)});
    }
    return {grad_x, grad_weight, grad_bias};
  }
};

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, std::int64_t stride, std::int64_t padding) {
  return apply<Conv2d>(x, weight, bias, stride, padding);
}

Tensor patch_embedding(const Tensor& x, const Tensor& weight, const Tensor& bias) { return apply<PatchEmbedding>(x, weight, bias); }

}  // namespace refrain
