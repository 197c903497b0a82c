// Conversion between the floating types of bytes that stand in a file and those of a tensor.
#pragma once

#include <refrain/core/dtype.h>

#include <cstddef>
#include <cstdint>

namespace refrain {

// Converts `count` elements. Widening is exact, narrowing rounds once to nearest, ties to even, whatever lies between the
// types; NaN stays NaN. Neither side needs alignment. Throws InvalidArgument for types that are not floating.
void convert_floating(DType from_dtype, const std::byte* from, DType to_dtype, std::byte* to, std::int64_t count);

}  // namespace refrain
