// Conversion between element types, and copies between layouts. Any strides on both sides.
#pragma once

#include <refrain/kernels/kernel.h>

namespace refrain {

// out = x as out's dtype. To a narrower floating type: round to nearest, ties to even. Floating to integer: towards
// zero, values out of range to the nearest end, NaN to 0. To bool: whether it differs from zero. Integer to a narrower
// integer: modulo 2^bits, as the language does. Subnormal floats may be read as 0, as in all kernels.
struct Convert {
  static constexpr std::string_view name = "convert";
  In x;
  Out out;  // x's shape
};
void validate(const Convert&);
Cost cost(const Convert&);
void run(Cpu, const Convert&);
void run(Cuda, const Convert&);

// The same for other kernels' parts: `shape` elements from one address, with strides counted in elements, to another.
void convert_strided(const Shape& shape, DType to_dtype, std::byte* to, const Strides& to_strides, DType from_dtype, const std::byte* from,
                     const Strides& from_strides);

}  // namespace refrain
