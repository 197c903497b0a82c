#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/norm.h>
#include <refrain/autograd/precision.h>
#include <refrain/kernels/norm/norm.h>

namespace refrain {

namespace {

Tensor contiguous_or_undefined(const Tensor& t) { return t.defined() ? contiguous_values(t) : t; }

struct LayerNorm {
  static constexpr std::string_view name = "layer_norm";
  static constexpr Rebuild rebuild = Rebuild::from_saved;
  // bias is read only when the output is rebuilt.
  struct Saved {
    SavedTensor x, weight, bias, mean, rstd;
    DType out;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x, const Tensor& weight, const Tensor& bias, double eps,
                                          DType out_dtype) {
    check(x.num_dims() >= 1, name, ": x must have at least 1 dim, got ", x.shape());
    Shape rows = x.shape();
    rows.erase(rows.size() - 1);
    const DType accumulator = accumulator_dtype(x.dtype());
    const Tensor out = op_output(x.shape(), out_dtype, x.device());
    Tensor mean, rstd;
    if (needs.any()) {
      mean = op_output(rows, accumulator, x.device());
      rstd = op_output(rows, accumulator, x.device());
    }
    launch(LayerNormForward{.x = contiguous_values(x), .weight = contiguous_or_undefined(weight), .bias = contiguous_or_undefined(bias),
                            .eps = eps, .out = out, .mean = mean, .rstd = rstd});
    if (!needs.any()) return {out, {{}, {}, {}, {}, {}, out_dtype}};
    return {out, {x, weight, bias, mean, rstd, out_dtype}};
  }

  static Grads<3> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    const Tensor x = contiguous_values(saved.x.get()), weight = contiguous_or_undefined(saved.weight.get());
    const Tensor mean = saved.mean.get(), rstd = saved.rstd.get();
    const Shape channels{x.dim(-1)};
    const Tensor grad_x = needs[0] ? empty_like(x) : without_bytes(x.shape(), x.dtype(), x.device());
    Tensor grad_weight, grad_bias, scratch;
    if (needs[1]) grad_weight = empty(channels, weight.dtype(), x.device());
    if (needs[2]) grad_bias = empty(channels, saved.bias.get().dtype(), x.device());
    if (needs[1] || needs[2]) {
      KindScope kind(MemoryKind::workspace);
      scratch = empty({LayerNormBackward::num_scratch(x.device().target(), mean.numel(), x.dim(-1))}, mean.dtype(), x.device());
    }
    launch(LayerNormBackward{.grad_out = grad_out, .x = x, .mean = mean, .rstd = rstd, .weight = weight, .out = grad_x,
                             .grad_weight = grad_weight, .grad_bias = grad_bias, .scratch = scratch});
    return {needs[0] ? grad_x : Tensor(), grad_weight, grad_bias};
  }

  static Tensor rebuild_output(const Saved& saved) {
    const Tensor x = contiguous_values(saved.x.get());
    const Tensor out = empty(x.shape(), saved.out, x.device());
    launch(LayerNormRebuild{.x = x, .mean = saved.mean.get(), .rstd = saved.rstd.get(), .weight = contiguous_or_undefined(saved.weight.get()),
                            .bias = contiguous_or_undefined(saved.bias.get()), .out = out});
    return out;
  }
};

struct BatchNorm {
  static constexpr std::string_view name = "batch_norm";
  static constexpr Rebuild rebuild = Rebuild::from_saved;
  struct Saved {
    SavedTensor x, weight, bias, mean, rstd;
    bool batch_statistics = true;
    DType out;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x, const Tensor& weight, const Tensor& bias, const RunningStatistics& running,
                                          const BatchNormOptions& options, DType out_dtype) {
    check(x.num_dims() >= 2, name, ": x must be [N, C, …], got ", x.shape());
    check(options.training || running.mean.defined(), name, ": evaluation needs running statistics, got none");
    check(!options.training || x.numel() == 0 || x.numel() / x.dim(1) > 1, name,
          ": expected more than one value per channel when training, got x ", x.shape());
    const DType accumulator = accumulator_dtype(x.dtype());
    const Tensor values = contiguous_values(x);
    const Tensor out = op_output(x.shape(), out_dtype, x.device());
    const Tensor mean = op_output({x.dim(1)}, accumulator, x.device()), rstd = op_output({x.dim(1)}, accumulator, x.device());
    if (options.training) {
      const bool moves = running.mean.defined() && !is_replaying();
      launch(BatchNormStatistics{.x = values, .eps = options.eps, .momentum = options.momentum, .out = mean, .rstd = rstd,
                                 .running_mean = moves ? running.mean : Tensor(), .running_var = moves ? running.var : Tensor()});
      if (moves) {
        running.mean.storage()->bump_version();
        running.var.storage()->bump_version();
      }
    } else {
      launch(BatchNormRunning{.running_mean = running.mean, .running_var = running.var, .eps = options.eps, .out = mean, .rstd = rstd});
    }
    launch(BatchNormApply{.x = values, .mean = mean, .rstd = rstd, .weight = contiguous_or_undefined(weight),
                          .bias = contiguous_or_undefined(bias), .out = out});
    if (!needs.any()) return {out, {{}, {}, {}, {}, {}, options.training, out_dtype}};
    return {out, {x, weight, bias, mean, rstd, options.training, out_dtype}};
  }

  static Grads<3> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    const Tensor x = contiguous_values(saved.x.get()), weight = contiguous_or_undefined(saved.weight.get());
    const Shape channels{x.dim(1)};
    const Tensor grad_x = needs[0] ? empty_like(x) : without_bytes(x.shape(), x.dtype(), x.device());
    Tensor grad_weight, grad_bias;
    if (needs[1]) grad_weight = empty(channels, weight.dtype(), x.device());
    if (needs[2]) grad_bias = empty(channels, saved.bias.get().dtype(), x.device());
    launch(BatchNormBackward{.grad_out = grad_out, .x = x, .mean = saved.mean.get(), .rstd = saved.rstd.get(),
                             .weight = weight, .batch_statistics = saved.batch_statistics,
                             .out = grad_x, .grad_weight = grad_weight, .grad_bias = grad_bias});
    return {needs[0] ? grad_x : Tensor(), grad_weight, grad_bias};
  }

  static Tensor rebuild_output(const Saved& saved) {
    const Tensor x = contiguous_values(saved.x.get());
    const Tensor out = empty(x.shape(), saved.out, x.device());
    launch(BatchNormApply{.x = x, .mean = saved.mean.get(), .rstd = saved.rstd.get(), .weight = contiguous_or_undefined(saved.weight.get()),
                          .bias = contiguous_or_undefined(saved.bias.get()), .out = out});
    return out;
  }
};

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return apply<LayerNorm>(x, weight, bias, eps, autocast_dtype_or(x.dtype()));
}

Tensor batch_norm2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const RunningStatistics& running, const BatchNormOptions& options) {
  return apply<BatchNorm>(x, weight, bias, running, options, autocast_dtype_or(x.dtype()));
}

}  // namespace refrain
