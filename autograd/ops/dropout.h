// Random regularisers. Masks are functions of a counter: nothing is saved, and a replay draws the same ones.
#pragma once

#include <refrain/core/random.h>
#include <refrain/core/tensor.h>

namespace refrain {

// Each element is 0 with probability p, else divided by 1 - p. Numbers come from the running stage, or outside stages
// from the thread's default generator (autograd/random.h); dim 0 is the batch. p = 0 draws nothing and returns x.
// f64, f32, f16 or bf16. Throws InvalidArgument for p outside [0, 1].
Tensor dropout(const Tensor& x, double p);
// The same with a generator of one's own.
Tensor dropout(const Tensor& x, double p, const Generator& generator);

// residual + dropout(x, p) in one pass, rounded once; equal shapes. One dtype, or f32 and a 16-bit type, whose result is
// f32; each gradient has its input's dtype.
Tensor dropout_add(const Tensor& x, const Tensor& residual, double p);

// Each sample of dim 0 is 0 as a whole with probability p, else divided by 1 - p (Huang et al., "Deep networks with
// stochastic depth", 2016).
Tensor stochastic_depth(const Tensor& x, double p);
Tensor stochastic_depth(const Tensor& x, double p, const Generator& generator);

}  // namespace refrain
