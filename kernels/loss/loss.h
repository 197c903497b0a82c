// Losses: cross-entropy from logits and class indices, mean squared error, and the count of correct predictions.
// Sums over rows are kept in f64 and added in row order. f64, f32, f16 and bf16: losses, and the gradients that come back
// to them, have the accumulator dtype (f32 but for f64), which is also what everything is computed in; 16-bit inputs are
// read as they are, and gradients of 16-bit inputs are rounded once.
#pragma once

#include <refrain/kernels/kernel.h>

namespace refrain {

enum class Reduction : std::uint8_t { mean, sum, none };
std::string_view name_of(Reduction reduction);

// Loss of row r with target t:  (1 - s) · (lse - x[t]) + s · (lse - mean(x)),  lse = log(sum(exp(x))), s = label_smoothing.
// Rows whose target is ignore_index count as 0; mean divides by the other rows, and is 0 when there are none.
// The result is multiplied by `scale`. Any other target outside 0 … V-1 is an InvalidArgument that names the row,
// thrown before anything is written. A row whose logits are all -inf has the loss +inf.
struct CrossEntropyForward {
  static constexpr std::string_view name = "cross_entropy";
  In logits, targets;        // […, V]  […] i64
  std::int64_t ignore_index;
  double label_smoothing;
  Reduction reduction;
  double scale;
  std::int64_t first_row = 0;  // what messages count rows from: where these are part of a longer batch
  Out out;                   // loss [], or […] with Reduction::none; accumulator type
  OptionalOut statistics;    // […, 2] accumulator type: maximum m and log(sum(exp(x - m))) of each row; for backward
  OptionalOut row_losses;    // […] accumulator type, scratch; not needed with Reduction::none
};
void validate(const CrossEntropyForward& k);
Cost cost(const CrossEntropyForward& k);
void run(Cpu, const CrossEntropyForward& k);
void run(Cuda, const CrossEntropyForward& k);

// grad_logits = (softmax(x) - target distribution) · grad_out · scale / (rows counted), from the saved statistics.
// Rows of ignored targets get exact zeros, whatever their logits. `out` may be `logits`.
struct CrossEntropyBackward {
  static constexpr std::string_view name = "cross_entropy_backward";
  In grad_out;                     // [], or […] with Reduction::none; accumulator type
  In logits, targets, statistics;  // […, V]  […] i64  […, 2]
  std::int64_t ignore_index;
  double label_smoothing;
  Reduction reduction;
  double scale;
  Out out;                         // grad_logits […, V], the logits' dtype
};
void validate(const CrossEntropyBackward& k);
Cost cost(const CrossEntropyBackward& k);
void run(Cpu, const CrossEntropyBackward& k);
void run(Cuda, const CrossEntropyBackward& k);

// The sum or mean of losses of rows that CrossEntropyForward made with Reduction::none and scale 1, with the same bits as
// one call over all rows.
struct ReduceLosses {
  static constexpr std::string_view name = "reduce_losses";
  In row_losses, targets;   // […] f64 or f32  […] i64
  std::int64_t ignore_index;
  Reduction reduction;      // mean or sum
  double scale;
  Out out;                  // [], row_losses' dtype
};
void validate(const ReduceLosses& k);
Cost cost(const ReduceLosses& k);
void run(Cpu, const ReduceLosses& k);
void run(Cuda, const ReduceLosses& k);

// The other way: what CrossEntropyBackward with Reduction::none and scale 1 has to get as each row's grad_out.
struct SpreadLossGradient {
  static constexpr std::string_view name = "spread_loss_gradient";
  In grad_out, targets;     // [] f64 or f32  […] i64
  std::int64_t ignore_index;
  Reduction reduction;      // mean or sum
  double scale;
  Out out;                  // […], grad_out's dtype
};
void validate(const SpreadLossGradient& k);
Cost cost(const SpreadLossGradient& k);
void run(Cpu, const SpreadLossGradient& k);
void run(Cuda, const SpreadLossGradient& k);

// (x - target)², its mean (0 for no elements) or its sum.
struct MseForward {
  static constexpr std::string_view name = "mse_loss";
  In x, target;           // equal shapes, contiguous; one dtype, or f32 and a 16-bit type
  Reduction reduction;
  Out out;                // [], or the shape of x with Reduction::none; accumulator type
  OptionalOut partials;   // [num_partials(numel)] f64, scratch; not needed with Reduction::none
  static std::int64_t num_partials(std::int64_t numel);
};
void validate(const MseForward& k);
Cost cost(const MseForward& k);
void run(Cpu, const MseForward& k);
void run(Cuda, const MseForward& k);

// grad_x = 2 · (x - target) · grad_out / (numel with Reduction::mean).
struct MseBackward {
  static constexpr std::string_view name = "mse_loss_backward";
  In grad_out, x, target;  // grad_out in the accumulator type
  Reduction reduction;
  Out out;                 // grad_x, of x's dtype
};
void validate(const MseBackward& k);
Cost cost(const MseBackward& k);
void run(Cpu, const MseBackward& k);
void run(Cuda, const MseBackward& k);

// How many rows have their largest logit (the first of equals) at their target. Ignored rows are not counted.
struct CountCorrect {
  static constexpr std::string_view name = "count_correct";
  In logits, targets;     // […, V]  […] i64
  std::int64_t ignore_index;
  Out out;                // [] i64
};
void validate(const CountCorrect& k);
Cost cost(const CountCorrect& k);
void run(Cpu, const CountCorrect& k);
void run(Cuda, const CountCorrect& k);

// How many targets are not ignore_index: the divisor of a mean over several micro-batches.
struct CountTargets {
  static constexpr std::string_view name = "count_targets";
  In targets;             // any shape, i64, contiguous
  std::int64_t ignore_index;
  Out out;                // [] i64
};
void validate(const CountTargets& k);
Cost cost(const CountTargets& k);
void run(Cpu, const CountTargets& k);
void run(Cuda, const CountTargets& k);

}  // namespace refrain
