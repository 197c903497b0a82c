// Clipping by the global norm. Nothing is rescaled in memory: the factor goes into Optimizer::step.
#pragma once

#include <refrain/core/tensor.h>

#include <cstdint>
#include <span>

namespace refrain {

struct GradNorm {
  double norm = 0;
  // Index of the first parameter whose gradient has an element that is infinite or NaN; -1 when all are finite.
  std::int64_t first_non_finite = -1;
  bool is_finite() const { return first_non_finite < 0; }
};

// sqrt(sum of the squares of all gradients) and whether all are finite, in one pass over each gradient. The sum is in f64,
// so no f32 or 16-bit gradient can overflow it: a parameter's sum is finite exactly if its gradient is. (An f64 gradient of
// more than 1e154 counts as infinite.) The parameters' sums are added in order. Parameters without a gradient count as 0.
// On a plan device, where there are no values, 0 and finite.
GradNorm grad_norm(std::span<const Tensor> parameters);

// grad_norm's norm.
double global_grad_norm(std::span<const Tensor> parameters);

// What gradients of this norm are to be multiplied by for a norm of at most max_norm: min(1, max_norm / norm).
// Throws InvalidArgument unless max_norm > 0, NonFinite for an infinite or NaN norm.
double clip_factor(double norm, double max_norm);

}  // namespace refrain
