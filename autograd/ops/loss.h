// Losses, and the counts that go with them. A loss has the accumulator dtype of its inputs (f32 for f32, f16 and bf16) in
// every precision mode: 16-bit inputs are read as they are, everything is computed in f32, and gradients are rounded once.
#pragma once

#include <refrain/kernels/loss/loss.h>

#include <cstdint>

namespace refrain {

struct CrossEntropyOptions {
  std::int64_t ignore_index = -100;         // rows with this target count for nothing
  double label_smoothing = 0;               // share of the target distribution spread evenly over all classes, 0 … 1
  Reduction reduction = Reduction::mean;    // mean over the rows that count; 0 when there are none
  double scale = 1;                         // the loss is multiplied by it: Reduction::sum with 1 / (tokens of all
                                            // micro-batches) makes their sum the mean over all tokens
};

// -sum(q log softmax(logits)) per row, q the (smoothed) one-hot distribution of the target (Szegedy et al. 2016).
// logits […, V] f64, f32, f16 or bf16, targets […] i64. A target outside 0 … V-1 that is not ignore_index is an InvalidArgument
// naming the row. Saves logits, targets and two numbers a row; no second buffer of the logits' size exists in forward,
// and backward writes into the gradient only.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options = {});

// (x - target)², its mean (0 for no elements) or its sum. Shapes must be equal; dtypes too, but for f32 with a
// 16-bit type. Saves both.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

// Rows whose largest logit (the first of equals) is at the target. 0 on a plan device, where there are no values.
std::int64_t count_correct(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index = -100);

// Targets that are not ignore_index. On a plan device, where there are no values, all of them.
std::int64_t count_targets(const Tensor& targets, std::int64_t ignore_index = -100);

}  // namespace refrain
