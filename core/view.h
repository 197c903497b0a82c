// Views without copies. They share bytes and carry no gradient: differentiable forms are in autograd/ops/view.h.
#pragma once

#include <refrain/core/tensor.h>

namespace refrain::view {

// Elements begin, begin + step, … below end of one dim. Negative begin or end count from the back. step >= 1.
Tensor slice(const Tensor& t, int dim, std::int64_t begin, std::int64_t end, std::int64_t step = 1);
// One index of a dim, which disappears.
Tensor select(const Tensor& t, int dim, std::int64_t index);
Tensor transpose(const Tensor& t, int dim0, int dim1);
Tensor permute(const Tensor& t, const Dims& dims);
// The same elements in another shape; one extent may be -1. Throws when strides would need a copy.
Tensor reshape(const Tensor& t, const Shape& shape);
// Whether reshape() needs no copy; `shape` without -1.
bool can_reshape(const Tensor& t, const Shape& shape);
// Extents of 1 (and new leading dims) repeated with stride 0.
Tensor expand(const Tensor& t, const Shape& shape);

// `shape` with its -1 filled in for numel elements.
Shape resolve_shape(const Shape& shape, std::int64_t numel);

}  // namespace refrain::view
