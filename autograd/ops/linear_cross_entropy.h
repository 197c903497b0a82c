// Cross-entropy of a linear layer's results that never exist whole: for heads with many classes.
#pragma once

#include <refrain/autograd/ops/loss.h>

#include <cstdint>

namespace refrain {

struct LinearCrossEntropy {
  Tensor loss;  // as cross_entropy() gives it
  // Rows whose largest logit (the first of equals) is at the target; 0 on a plan device, and in a region's replay, which
  // does not count again.
  std::int64_t correct = 0;
};

// cross_entropy(linear(hidden, weight, bias), targets, options) and count_correct() of the same logits, computed for
// `chunk_rows` rows of hidden after another, in forward and again in backward; 0 means all rows at once.
// hidden [N…, D], weight [V, D], bias [V] or undefined, targets [N…] i64; dtypes as linear() takes them.
//
// Saves hidden, weight, bias, targets and two numbers a row. Logits of one chunk exist at a time, in hidden's dtype; their
// gradient is written over them. The loss, each row's and the sum, and the gradient of hidden have the bits of the
// composition. The gradients of weight and bias are sums over chunks, in order: they depend on chunk_rows in their last
// places, never on the number of threads. Sums are kept in f32 (f64 for f64) and rounded once, so 16-bit weights with more
// than one chunk take an f32 buffer of the weight's size while backward runs.
// Throws InvalidArgument when shapes or dtypes do not fit, and for a target out of range, naming the row.
LinearCrossEntropy linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& bias, const Tensor& targets,
                                        const CrossEntropyOptions& options = {}, std::int64_t chunk_rows = 0);

}  // namespace refrain
