// Differentiable arithmetic. Operands broadcast (NumPy's rule), any strides. f64, f32, f16 or bf16: operands share a dtype,
// which is the result's, or are f32 and one 16-bit type, whose result is f32 (no converted copy is made). 16-bit values
// are computed with in f32 and rounded once, to nearest, ties to even, as results are stored; gradients have their
// operand's dtype. Shapes or dtypes that do not fit throw InvalidArgument naming the op.
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

// add and sub save nothing; mul saves an operand when the other wants a gradient; div saves b, and a when b wants one.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);

// The result has the tensor's dtype. The scalar is rounded to f64 or f32, in which the op is computed. These save nothing, but for scalar / tensor, which saves the tensor.
Tensor add(const Tensor& x, double scalar);
Tensor sub(const Tensor& x, double scalar);
Tensor mul(const Tensor& x, double scalar);
Tensor div(const Tensor& x, double scalar);
Tensor sub(double scalar, const Tensor& x);
Tensor div(double scalar, const Tensor& x);

// x^exponent as the C library's pow(). Saves x.
Tensor pow(const Tensor& x, double exponent);

Tensor neg(const Tensor& x);
// Gradient 0 at 0. Saves x.
Tensor abs(const Tensor& x);
// Save x.
Tensor square(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);
// Save their output.
Tensor exp(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);

// condition ? a : b, dtypes as above; condition is bool and gets no gradient. Saves the condition.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

inline Tensor operator+(const Tensor& a, const Tensor& b) { return add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return div(a, b); }
inline Tensor operator+(const Tensor& x, double scalar) { return add(x, scalar); }
inline Tensor operator-(const Tensor& x, double scalar) { return sub(x, scalar); }
inline Tensor operator*(const Tensor& x, double scalar) { return mul(x, scalar); }
inline Tensor operator/(const Tensor& x, double scalar) { return div(x, scalar); }
inline Tensor operator+(double scalar, const Tensor& x) { return add(x, scalar); }
inline Tensor operator-(double scalar, const Tensor& x) { return sub(scalar, x); }
inline Tensor operator*(double scalar, const Tensor& x) { return mul(x, scalar); }
inline Tensor operator/(double scalar, const Tensor& x) { return div(scalar, x); }
inline Tensor operator-(const Tensor& x) { return neg(x); }

}  // namespace refrain
