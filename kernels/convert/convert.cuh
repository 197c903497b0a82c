// Conversion of strided elements on a CUDA device: the rules of convert.h.
#pragma once

#include <refrain/core/dtype.h>
#include <refrain/core/shape.h>
#include <refrain/core/stream.h>

namespace refrain::cuda {

// `shape` elements from one address, with strides counted in elements, to another.
void convert_strided(const Cuda& device, const Shape& shape, DType to_dtype, std::byte* to, const Strides& to_strides,
                     DType from_dtype, const std::byte* from, const Strides& from_strides);

}  // namespace refrain::cuda
