#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/linear.h>
#include <refrain/autograd/ops/product_weight.h>
#include <refrain/kernels/matmul/matmul.h>

namespace refrain {

namespace {

struct Linear {
  static constexpr std::string_view name = "linear";
  struct Saved {
    SavedTensor x, weight;
    DType weight_dtype = DType::f32, bias_dtype = DType::f32;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x, const Tensor& weight, const Tensor& bias) {
    check(weight.num_dims() == 2, name, ": weight must be [out, in], got ", weight.shape());
    check(x.num_dims() >= 1 && x.dim(-1) == weight.dim(1), name, ": x must be [..., ", weight.dim(1), "], got ", x.shape());
    Shape shape = x.shape();
    shape[shape.size() - 1] = weight.dim(0);
    const Tensor out = op_output(shape, x.dtype(), x.device());
    if (must_compute(out)) {
      launch(LinearForward{.x = contiguous_values(x), .weight = weight_as(name, weight, x.dtype()),
                           .bias = bias.defined() ? contiguous_values(bias) : bias, .out = out, .pre_activation = {}});
    }
    return {out, {.x = needs[1] ? x : Tensor(), .weight = needs[0] ? weight : Tensor(), .weight_dtype = weight.dtype(),
                  .bias_dtype = bias.defined() ? bias.dtype() : x.dtype()}};
  }

  static Grads<3> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    Tensor grad_x, grad_weight, grad_bias;
    const Device& device = grad_out.device();
    const std::int64_t N = grad_out.dim(-1);
    if (needs[2]) grad_bias = empty({N}, saved.bias_dtype, device);
    if (needs[1]) {
      const Tensor x = contiguous_values(saved.x.get());
      const std::int64_t K = x.dim(-1), R = N == 0 ? 0 : grad_out.numel() / N;
      grad_weight = empty({N, K}, saved.weight_dtype, device);
      Tensor scratch;
      if (const std::int64_t size = LinearBackwardWeight::scratch_size(R, N, K, saved.weight_dtype)) {
        const KindScope kind(MemoryKind::workspace);
        scratch = empty({size}, accumulator_dtype(saved.weight_dtype), device);
      }
      const bool is_one_pass = saved.bias_dtype == saved.weight_dtype;
      launch(LinearBackwardWeight{.grad_out = grad_out, .x = x, .out = grad_weight, .grad_bias = is_one_pass ? grad_bias : Tensor(), .scratch = scratch});
      if (needs[2] && !is_one_pass) launch(LinearBackwardBias{.grad_out = grad_out, .out = grad_bias});
    } else if (needs[2]) {
      launch(LinearBackwardBias{.grad_out = grad_out, .out = grad_bias});
    }
    if (needs[0]) {
      const Tensor weight = weight_as(name, saved.weight.get(), grad_out.dtype());
      Shape shape = grad_out.shape();
      shape[shape.size() - 1] = weight.dim(1);
      grad_x = empty(shape, grad_out.dtype(), device);
      launch(LinearBackwardInput{.grad_out = grad_out, .weight = weight, .out = grad_x});
    }
    return {grad_x, grad_weight, grad_bias};
  }
};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) { return apply<Linear>(x, weight, bias); }

}  // namespace refrain
