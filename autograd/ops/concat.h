// Differentiable concatenation.
#pragma once

#include <refrain/core/tensor.h>

#include <concepts>
#include <initializer_list>
#include <span>

namespace refrain {

// Tensors one behind the other along an existing dim (negative counts from the back): at least one, with equal shapes
// but for that dim; any strides. Of one dtype, any, or of f32 and one 16-bit type, which give f32. Saves extents and dtypes
// alone: the gradients are slices.
// Throws InvalidArgument when they do not fit.
Tensor concat_tensors(std::span<const Tensor> inputs, int dim);

// The same for vectors, arrays, spans and lists of tensors.
template <class List, std::integral I>
requires std::convertible_to<const List&, std::span<const Tensor>> Tensor concat(const List& inputs, I dim) {
  return concat_tensors(inputs, int(dim));
}
inline Tensor concat(std::initializer_list<Tensor> inputs, int dim) { return concat_tensors({inputs.begin(), inputs.size()}, dim); }

}  // namespace refrain
