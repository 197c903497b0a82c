// Clipping by the global norm. Nothing is rescaled in memory: the factor goes into Optimizer::step.
#pragma once

#include <refrain/core/tensor.h>

#include <span>

namespace refrain {

// sqrt(sum of the squares of all gradients), in f64, so that no f32 gradient can overflow it; the parameters' sums are
// added in order. Parameters without a gradient count as 0. On a plan device, where there are no values, 0.
double global_grad_norm(std::span<const Tensor> parameters);

// What gradients of this norm are to be multiplied by for a norm of at most max_norm: min(1, max_norm / norm).
// Throws InvalidArgument unless max_norm > 0, NonFinite for an infinite or NaN norm.
double clip_factor(double norm, double max_norm);

}  // namespace refrain
