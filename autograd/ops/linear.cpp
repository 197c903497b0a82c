#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/linear.h>
#include <refrain/autograd/ops/product_weight.h>
#include <refrain/autograd/ops/product_workspace.h>
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
                           .bias = bias.defined() ? contiguous_values(bias) : bias, .out = out, .pre_activation = {},
                           .workspace = product_workspace(x.device(), rows_of(out), weight.dim(0), weight.dim(1))});
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
      const std::int64_t K = x.dim(-1), R = rows_of(grad_out);
      grad_weight = empty({N, K}, saved.weight_dtype, device);
      Tensor scratch;
      if (const std::int64_t size = LinearBackwardWeight::scratch_size(device.target(), R, N, K, saved.weight_dtype)) {
        const KindScope kind(MemoryKind::workspace);
        scratch = empty({size}, accumulator_dtype(saved.weight_dtype), device);
      }
      const bool is_one_pass = saved.bias_dtype == saved.weight_dtype;
      launch(LinearBackwardWeight{.grad_out = grad_out, .x = x, .out = grad_weight, .grad_bias = is_one_pass ? grad_bias : Tensor(), .scratch = scratch,
                                  .workspace = product_workspace(device, N, K, R)});
      if (needs[2] && !is_one_pass) launch_bias(grad_out, grad_bias);
    } else if (needs[2]) {
      launch_bias(grad_out, grad_bias);
    }
    if (needs[0]) {
      const Tensor weight = weight_as(name, saved.weight.get(), grad_out.dtype());
      Shape shape = grad_out.shape();
      shape[shape.size() - 1] = weight.dim(1);
      grad_x = empty(shape, grad_out.dtype(), device);
      launch(LinearBackwardInput{.grad_out = grad_out, .weight = weight, .out = grad_x,
                                 .workspace = product_workspace(device, rows_of(grad_out), weight.dim(1), N)});
    }
    return {grad_x, grad_weight, grad_bias};
  }

 private:
  static std::int64_t rows_of(const Tensor& t) { return t.dim(-1) == 0 ? 0 : t.numel() / t.dim(-1); }
  static void launch_bias(const Tensor& grad_out, const Tensor& out) {
    launch(LinearBackwardBias{.grad_out = grad_out, .out = out, .workspace = column_sums_workspace(out.device(), rows_of(grad_out), out.dim(0))});
  }
};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) { return apply<Linear>(x, weight, bias); }

}  // namespace refrain
