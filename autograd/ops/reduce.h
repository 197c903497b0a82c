// Differentiable reductions. Sums run in a fixed order; saved are shapes alone (and, for max, the indices).
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

// Sum over `dims` (negative ones count from the back, none twice), which disappear, or stay with extent 1 under keepdim.
// f64, f32, f16 or bf16: the result has x's dtype, sums are kept in f32 for 16-bit types and rounded once. Throws InvalidArgument for a dim out of range or named twice.
Tensor sum(const Tensor& x, const Dims& dims, bool keepdim = false);
// Sum of all elements, shape [].
Tensor sum(const Tensor& x);

// The same divided by the number of elements summed; NaN over no elements. A 16-bit mean is rounded after the division.
Tensor mean(const Tensor& x, const Dims& dims, bool keepdim = false);
Tensor mean(const Tensor& x);

struct MaxResult {
  Tensor values;
  Tensor indices;  // i64
};
// The largest element along dim and its (first) index. NaN counts as largest. The gradient goes to that one element.
// Throws InvalidArgument when there is nothing along dim.
MaxResult max(const Tensor& x, int dim, bool keepdim = false);

// Sums a gradient over the dims in which `shape` was broadcast to the gradient's shape: the gradient itself when the
// shapes are equal. Not recorded; grad may have any strides.
Tensor sum_to(const Tensor& grad, const Shape& shape);
// The same as another dtype, rounded once: the gradient's own, f32 for a 16-bit gradient, or a 16-bit type for an f32 one.
Tensor sum_to(const Tensor& grad, const Shape& shape, DType dtype);

// Σ x² of all elements in double, on x's device, shape []. Not recorded. For gradient norms: squares of f32, f16 and bf16 do not overflow.
Tensor squared_norm(const Tensor& x);

}  // namespace refrain
