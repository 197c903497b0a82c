// The dtype of a result whose operands may have different ones.
#pragma once

#include <refrain/core/dtype.h>

#include <string_view>

namespace refrain {

// The dtype that a and b share; f32 for f32 with a 16-bit type. Throws InvalidArgument, naming the op, for others.
inline DType common_dtype(DType a, DType b, std::string_view op) {
  if (a == b) return a;
  check(!is_16_bit(a) || !is_16_bit(b), op, ": f16 and bf16 do not mix; convert one of them first");
  check((a == DType::f32 && is_16_bit(b)) || (is_16_bit(a) && b == DType::f32), op,
        ": operands must have one dtype, or be f32 and a 16-bit type, got ", a, " and ", b);
  return DType::f32;
}

}  // namespace refrain
