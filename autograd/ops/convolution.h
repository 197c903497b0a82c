// Convolution over images and the patch embedding of vision transformers.
#pragma once

#include <refrain/core/tensor.h>

#include <cstdint>

namespace refrain {

// x[B, C, H, W], weight[O, C, P, Q], bias[O] or undefined -> [B, O, Y, X] with Y = (H + 2 padding - P) / stride + 1.
// Cross-correlation with zero padding. out has x's dtype, any floating one; sums of 16-bit products are f32. Saves x when
// the weight wants a gradient, and the weight when x does. In a mixed mode x comes in 16 bits and weight and bias may be
// f32, as for linear().
// Throws InvalidArgument when shapes or dtypes do not fit or the window exceeds the padded image.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, std::int64_t stride = 1, std::int64_t padding = 0);

// Non-overlapping patches of x[B, C, H, W] times weight[D, C, P, Q] plus bias[D] or undefined -> [B, N, D], patches row
// by row: conv2d with stride P, transposed (Dosovitskiy et al., "An image is worth 16x16 words", 2021). P must divide
// H, Q must divide W. x may be of any floating dtype: its pixels are rounded to the products' dtype, which is the weight's
// (16 bits in a mixed mode), as patches are gathered, and so is the result. Saves as conv2d does: x as it is.
Tensor patch_embedding(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace refrain
