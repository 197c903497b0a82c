// The dtypes a product kernel takes: operands of one floating dtype, and results and biases of the same or, where that is
// 16-bit, of f32 too. For .cpp files of the kernels room.
#pragma once

#include <refrain/kernels/kernel.h>
#include <refrain/kernels/matmul/gemm.h>

#include <string_view>

namespace refrain {

inline void check_own_or_wide(std::string_view kernel, std::string_view argument, const TensorArg& t, DType operands) {
  if (is_16_bit(operands) && t.dtype() == DType::f32) return;
  check(t.dtype() == operands, kernel, ": ", argument, " must be ", operands, is_16_bit(operands) ? " or f32" : "", ", got ", t.dtype());
}

// A bias of either dtype; S is the operands' type.
template <class S>
GemmBias<S> bias_of(const OptionalIn& bias) {
  if constexpr (is_half<S>) {
    if (bias && bias.dtype() == DType::f32) return bias.data<float>();
  }
  return bias.data<S>();
}

// Calls f(S{}, C{}) with the types of the operands and of the result.
template <class F>
void dispatch_product(DType operands, DType result, std::string_view kernel, F&& f) {
  dispatch_floating(operands, kernel, [&]<class S>(S own) {
    if constexpr (is_half<S>) {
      if (result == DType::f32) return f(own, float{});
    }
    f(own, own);
  });
}

}  // namespace refrain
