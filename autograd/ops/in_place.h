// Changes a tensor's values in place and bumps its version, for values that no gradient depends on. While gradients are
// on, each of these refuses (InvalidArgument, naming the op that returns a new tensor) a tensor that wants a gradient
// or shares bytes with a value that backward will read, and an operand that wants a gradient.
// The result is rounded once to t's dtype; 16-bit and f32 operands may be mixed (add_, mul_).
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

void add_(const Tensor& t, const Tensor& other);  // other broadcasts to t
void add_(const Tensor& t, double scalar);
void mul_(const Tensor& t, const Tensor& other);
void mul_(const Tensor& t, double scalar);
void fill_(const Tensor& t, double value);
void zero_(const Tensor& t);
void copy_(const Tensor& t, const Tensor& source);  // source has t's shape, and any dtype
void relu_(const Tensor& t);

}  // namespace refrain
