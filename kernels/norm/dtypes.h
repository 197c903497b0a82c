// Which element types of x, output and parameters go together: all the same, or a 16-bit output of f32 or equal x with f32
// parameters, as mixed precision has it.
#pragma once

#include <refrain/kernels/kernel.h>

namespace refrain::norm_dtypes {

// What weight, bias and their gradients are in: their own dtype, x's when the kernel has none of them.
template <class K>
DType parameters_of(const K& k) {
  if (k.weight.defined()) return k.weight.dtype();
  if constexpr (requires { k.bias; }) {
    if (k.bias.defined()) return k.bias.dtype();
  }
  if constexpr (requires { k.grad_weight; }) {
    if (k.grad_weight.defined()) return k.grad_weight.dtype();
    if (k.grad_bias.defined()) return k.grad_bias.dtype();
  }
  return k.x.dtype();
}

// Throws InvalidArgument unless the three go together.
inline void check_together(std::string_view kernel, DType x, DType out, DType parameters) {
  const bool is_equal = x == out && (parameters == x || (is_16_bit(x) && parameters == DType::f32));
  const bool is_narrowing = x == DType::f32 && is_16_bit(out) && parameters == DType::f32;
  check(is_equal || is_narrowing, kernel, ": x, out and weight must be of one dtype, or out 16-bit, weight f32 and x either, got ", x, ", ",
        out, " and ", parameters);
}

// Calls f.template operator()<X, O, W>() for a validated kernel with output (or gradient of the output) of dtype `out`.
template <class K, class F>
void dispatch(const K& k, DType out, F&& f) {
  dispatch_floating(out, K::name, [&](auto o) {
    using O = decltype(o);
    if constexpr (is_half<O>) {
      if (k.x.dtype() == DType::f32) return f.template operator()<float, O, float>();
      if (parameters_of(k) == DType::f32) return f.template operator()<O, O, float>();
    }
    f.template operator()<O, O, O>();
  });
}

}  // namespace refrain::norm_dtypes
