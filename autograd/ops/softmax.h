// Softmax and log-softmax.
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

// exp(x) / sum(exp(x)) along `dim` (negative counts from the back), by subtraction of the maximum. f32 or f64.
// A line of -inf alone gives zeros. Saves its output.
Tensor softmax(const Tensor& x, int dim);

// log(softmax(x)) without its loss of precision. A line of -inf alone gives -inf. Saves its output.
Tensor log_softmax(const Tensor& x, int dim);

}  // namespace refrain
