// Matrix products.
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

// a[..., M, K] b[..., K, N] -> [..., M, N]; the batch dims broadcast. One floating dtype, at least 2 dims each; sums of
// 16-bit products are f32, over broadcast batches too, and rounded once. Transposed views and views with long rows are read as they are; other strides are copied first. Saves a when b wants a
// gradient, and b when a does. Throws InvalidArgument when shapes or dtypes do not fit.
Tensor matmul(const Tensor& a, const Tensor& b);

}  // namespace refrain
