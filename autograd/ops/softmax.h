// Softmax and log-softmax.
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

// exp(x) / sum(exp(x)) along `dim` (negative counts from the back), by subtraction of the maximum. f64, f32, f16
// or bf16; 16-bit lines are computed with and summed in f32 and rounded once. A line of -inf alone gives zeros. Saves its
// output.
Tensor softmax(const Tensor& x, int dim);

// log(softmax(x)) without its loss of precision. A line of -inf alone gives -inf. Saves its output:
// backward takes exp() of it, so a 16-bit y that was rounded by u·|y| gives probabilities off by that relative amount.
Tensor log_softmax(const Tensor& x, int dim);

}  // namespace refrain
