// Concatenation along a dim. Inputs may be any strided views, of any dtype; f16 and bf16 parts of an f32 whole are widened
// (exactly) as they are copied. The gradient needs no kernel: it is the
// slices of the output's.
#pragma once

#include <refrain/kernels/kernel.h>

#include <span>

namespace refrain {

struct Concat {
  static constexpr std::string_view name = "concat";
  std::span<const In> inputs;  // at least one; out's dtype, or 16-bit for f32; equal shapes but for dim
  int dim;                     // counted from the front
  Out out;                     // extent along dim: the sum of the inputs'
};
void validate(const Concat&);
Cost cost(const Concat&);
void run(Cpu, const Concat&);
void run(Cuda, const Concat&);

}  // namespace refrain
