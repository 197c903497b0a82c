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

}  // namespace refrain
