// The linear layer.
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

// x[..., in] weight[out, in]ᵀ + bias[out] -> [..., out] in x's dtype, any floating one; bias may be undefined. Sums of
// 16-bit products are f32. Saves x when the weight wants a gradient, and the weight when x does; contiguous inputs are
// not copied. In a mixed mode x comes in 16 bits and weight and bias may be f32: a 16-bit copy of the weight then lives
// while forward or backward runs, what is saved is the weight, and the gradients of weight and bias are f32 throughout.
// Throws InvalidArgument when shapes or dtypes do not fit.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace refrain
