// Differentiable views: they share the tensor's bytes and save shapes alone. The plain forms are in core/view.h, whose
// rules for arguments hold here too.
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

// Elements begin, begin + step, … below end of one dim. Negative begin or end count from the back. step >= 1.
Tensor slice(const Tensor& x, int dim, std::int64_t begin, std::int64_t end, std::int64_t step = 1);
// One index of a dim, which disappears.
Tensor select(const Tensor& x, int dim, std::int64_t index);
Tensor transpose(const Tensor& x, int dim0, int dim1);
Tensor permute(const Tensor& x, const Dims& dims);
// The same elements in another shape, one extent of which may be -1. A copy where strides do not allow a view.
Tensor reshape(const Tensor& x, const Shape& shape);
// Extents of 1 (and new leading dims) repeated without a copy.
Tensor expand(const Tensor& x, const Shape& shape);
// A dim of extent 1 more, before dim (-1: behind the last), or less.
Tensor unsqueeze(const Tensor& x, int dim);
Tensor squeeze(const Tensor& x, int dim);
// Dims first … last become one.
Tensor flatten(const Tensor& x, int first = 0, int last = -1);
// x itself when contiguous, else a contiguous copy.
Tensor contiguous(const Tensor& x);

}  // namespace refrain
