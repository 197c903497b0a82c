// The linear layer.
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

// x[..., in] weight[out, in]ᵀ + bias[out] -> [..., out]. f32 or f64; bias may be undefined. Saves x when the weight
// wants a gradient, and the weight when x does; contiguous inputs are not copied.
// Throws InvalidArgument when shapes or dtypes do not fit.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace refrain
