// Normalisation: layer norm over the last dim, batch norm over channels.
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

// y = (x - mean) / sqrt(var + eps) * weight + bias over the last dim, with the biased variance (Ba, Kiros, Hinton 2016).
// x […, C]; weight and bias [C] of the same dtype, any floating one, either may be undefined; f32 beside a 16-bit x will do.
// In a mixed mode the output is 16-bit, x f32 or 16-bit, weight and bias f32. Statistics, sums and arithmetic are f32 (f64
// for f64). Saves x, weight, bias, mean and rstd; readers of the output rebuild it.
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps);

// Running statistics of a batch norm, [C] each, of x's dtype, or f32 beside a 16-bit x: what a step adds is often less than
// half a unit of a 16-bit number. Both undefined: none are kept.
struct RunningStatistics {
  Tensor mean, var;
};

struct BatchNormOptions {
  double eps = 1e-5;
  double momentum = 0.1;
  // Normalise with the batch's own statistics and move the running ones; else with the running ones, untouched.
  bool training = true;
};

// Batch norm (Ioffe, Szegedy 2015) of x [N, C, H, W] (any [N, C, …]) per channel, as PyTorch defines it: the biased
// variance normalises, the unbiased one moves running.var; running = (1 - momentum) * running + momentum * batch, in place,
// and not in a replay. weight and bias [C] may be undefined. Dtypes as layer_norm's.
// Throws InvalidArgument when training with one value per channel, and in evaluation without running statistics.
Tensor batch_norm2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const RunningStatistics& running, const BatchNormOptions& options);

}  // namespace refrain
