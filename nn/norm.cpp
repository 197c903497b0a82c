#include <refrain/nn/norm.h>

#include <refrain/autograd/ops/norm.h>

namespace refrain {

LayerNorm::LayerNorm(std::int64_t width, double eps) : eps_(eps) {
  check(width > 0 && eps >= 0, "LayerNorm: expected a positive width and eps >= 0, got ", width, " and ", eps);
  add_parameter("weight", weight, {width}, Init::ones());
  add_parameter("bias", bias, {width}, Init::zeros());
}

Tensor LayerNorm::operator()(const Tensor& x) const {
  const ModuleScope scope = enter();
  return layer_norm(x, weight, bias, eps_);
}

BatchNorm2d::BatchNorm2d(std::int64_t num_channels, const BatchNorm2dOptions& options) : options_(options) {
  check(num_channels > 0 && options.eps >= 0 && options.momentum >= 0 && options.momentum <= 1,
        "BatchNorm2d: expected a positive number of channels, eps >= 0 and a momentum in [0, 1], got ", num_channels, ", ", options.eps, " and ",
        options.momentum);
  add_parameter("weight", weight, {num_channels}, Init::ones());
  add_parameter("bias", bias, {num_channels}, Init::zeros());
  // In 16 bits a running mean would lose the small steps it moves by.
  const DType statistics = accumulator_dtype(creation_dtype());
  add_buffer("running_mean", running_mean, {num_channels}, Init::zeros(), statistics);
  add_buffer("running_var", running_var, {num_channels}, Init::ones(), statistics);
}

Tensor BatchNorm2d::operator()(const Tensor& x) const {
  const ModuleScope scope = enter();
  return batch_norm2d(x, weight, bias, {running_mean, running_var}, {.eps = options_.eps, .momentum = options_.momentum, .training = is_training()});
}

}  // namespace refrain
