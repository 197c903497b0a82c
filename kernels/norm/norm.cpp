// Validation and cost of the norm kernels.
#include <refrain/kernels/norm/dtypes.h>
#include <refrain/kernels/norm/norm.h>

namespace refrain {

namespace {

Shape without_last_dim(const Shape& shape) {
  Shape rows = shape;
  rows.erase(shape.size() - 1);
  return rows;
}

// A contiguous tensor of this shape and dtype.
void check_tensor(std::string_view kernel, std::string_view argument, const TensorArg& arg, const Shape& shape, DType dtype) {
  if (!arg.defined()) return;
  check_shape(kernel, argument, arg, shape);
  check_dtype(kernel, argument, arg, dtype);
  check_contiguous(kernel, argument, arg);
}

// x and out (or, in backward, grad_out) with statistics of `statistics` and parameters of one [C].
template <class K>
void check_operands(const K& k, const TensorArg& out, const Shape& statistics, const Shape& channels) {
  const DType parameters = norm_dtypes::parameters_of(k), accumulator = accumulator_dtype(k.x.dtype());
  check_floating(K::name, "out", out);
  norm_dtypes::check_together(K::name, k.x.dtype(), out.dtype(), parameters);
  check_tensor(K::name, "mean", k.mean, statistics, accumulator);
  check_tensor(K::name, "rstd", k.rstd, statistics, accumulator);
  check_tensor(K::name, "weight", k.weight, channels, parameters);
  if constexpr (requires { k.grad_weight; }) {
    check_tensor(K::name, "grad_out", k.grad_out, k.x.shape(), k.grad_out.dtype());
    check_tensor(K::name, "grad_x", k.out, k.x.shape(), k.x.dtype());
    check_tensor(K::name, "grad_weight", k.grad_weight, channels, parameters);
    check_tensor(K::name, "grad_bias", k.grad_bias, channels, parameters);
  } else {
    check_tensor(K::name, "bias", k.bias, channels, parameters);
    check_tensor(K::name, "out", k.out, k.x.shape(), k.out.dtype());
  }
}

template <class K>
void check_rows(const K& k, const TensorArg& out) {
  check_floating(K::name, "x", k.x);
  check_contiguous(K::name, "x", k.x);
  check(k.x.num_dims() >= 1, K::name, ": x must have at least 1 dim, got ", k.x.shape());
  check_operands(k, out, without_last_dim(k.x.shape()), {k.x.dim(-1)});
}

template <class K>
void check_images(const K& k) {
  check_floating(K::name, "x", k.x);
  check_contiguous(K::name, "x", k.x);
  check(k.x.num_dims() >= 2, K::name, ": x must be [N, C, …], got ", k.x.shape());
}

template <class K>
void check_channels(const K& k, const TensorArg& out) {
  check_images(k);
  check_operands(k, out, {k.x.dim(1)}, {k.x.dim(1)});
}

// [C] each, in x's dtype or its accumulator's.
void check_running(std::string_view kernel, const TensorArg& mean, const TensorArg& var, const Shape& channels, DType x) {
  if (!mean.defined()) return;
  check(mean.dtype() == x || mean.dtype() == accumulator_dtype(x), kernel, ": running_mean must be ", x, " like x, or ", accumulator_dtype(x),
        ", got ", mean.dtype());
  check_tensor(kernel, "running_mean", mean, channels, mean.dtype());
  check_tensor(kernel, "running_var", var, channels, mean.dtype());
}

double bytes_if_there(const TensorArg& arg) { return arg.defined() ? arg.bytes() : 0; }

}  // namespace

void validate(const LayerNormForward& k) {
  check_rows(k, k.out);
  check(k.eps >= 0, k.name, ": eps must not be negative, got ", k.eps);
}

Cost cost(const LayerNormForward& k) {
  return {9.0 * double(k.x.numel()), k.x.bytes() + k.out.bytes() + bytes_if_there(k.weight) + bytes_if_there(k.bias) +
                                         bytes_if_there(k.mean) + bytes_if_there(k.rstd)};
}

void validate(const LayerNormRebuild& k) { check_rows(k, k.out); }

Cost cost(const LayerNormRebuild& k) {
  return {4.0 * double(k.x.numel()), k.x.bytes() + k.out.bytes() + bytes_if_there(k.weight) + bytes_if_there(k.bias) +
                                         k.mean.bytes() + k.rstd.bytes()};
}

void validate(const LayerNormBackward& k) {
  check_rows(k, k.grad_out);
  if (!k.grad_weight.defined() && !k.grad_bias.defined()) return;
  const std::int64_t rows = k.mean.numel();
  check(k.scratch.defined(), k.name, ": scratch must be given for parameter gradients");
  check_tensor(k.name, "scratch", k.scratch, {LayerNormBackward::num_scratch(k.out.target(), rows, k.x.dim(-1))}, accumulator_dtype(k.x.dtype()));
}

Cost cost(const LayerNormBackward& k) {
  return {16.0 * double(k.x.numel()), k.grad_out.bytes() + k.x.bytes() + k.out.bytes() + k.mean.bytes() + k.rstd.bytes() +
                                          bytes_if_there(k.weight) + bytes_if_there(k.grad_weight) + bytes_if_there(k.grad_bias)};
}

void validate(const BatchNormStatistics& k) {
  check_images(k);
  const Shape channels{k.x.dim(1)};
  const DType accumulator = accumulator_dtype(k.x.dtype());
  check_tensor(k.name, "mean", k.out, channels, accumulator);
  check_tensor(k.name, "rstd", k.rstd, channels, accumulator);
  check_running(k.name, k.running_mean, k.running_var, channels, k.x.dtype());
  check(k.running_mean.defined() == k.running_var.defined(), k.name, ": running_mean and running_var go together");
  check(k.eps >= 0, k.name, ": eps must not be negative, got ", k.eps);
  check(k.x.dim(1) == 0 || k.x.numel() / k.x.dim(1) > 1, k.name,
        ": expected more than one value per channel when training, got x ", k.x.shape());
}

Cost cost(const BatchNormStatistics& k) { return {5.0 * double(k.x.numel()), k.x.bytes()}; }

void validate(const BatchNormRunning& k) {
  check_floating(k.name, "running_mean", k.running_mean);
  check(k.running_mean.num_dims() == 1, k.name, ": running_mean must be [C], got ", k.running_mean.shape());
  const Shape channels = k.running_mean.shape();
  const DType accumulator = accumulator_dtype(k.running_mean.dtype());
  check_tensor(k.name, "running_mean", k.running_mean, channels, k.running_mean.dtype());
  check_tensor(k.name, "running_var", k.running_var, channels, k.running_mean.dtype());
  check_tensor(k.name, "mean", k.out, channels, accumulator);
  check_tensor(k.name, "rstd", k.rstd, channels, accumulator);
  check(k.eps >= 0, k.name, ": eps must not be negative, got ", k.eps);
}

Cost cost(const BatchNormRunning& k) { return {3.0 * double(k.out.numel()), 4 * k.running_mean.bytes()}; }

void validate(const BatchNormApply& k) { check_channels(k, k.out); }

Cost cost(const BatchNormApply& k) { return {4.0 * double(k.x.numel()), k.x.bytes() + k.out.bytes()}; }

void validate(const BatchNormBackward& k) { check_channels(k, k.grad_out); }

Cost cost(const BatchNormBackward& k) { return {12.0 * double(k.x.numel()), 2 * k.grad_out.bytes() + 2 * k.x.bytes() + k.out.bytes()}; }

}  // namespace refrain
