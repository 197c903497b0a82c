// Softmax and log-softmax over one dim, by subtraction of the maximum. f64, f32, f16 and bf16; all arguments share the
// dtype. 16-bit lines are computed with in f32, sums included, and rounded once as results are stored.
#pragma once

#include <refrain/kernels/kernel.h>

namespace refrain {

// out = exp(x - m) / sum(exp(x - m)) over `dim`, m the maximum; with is_log its logarithm, x - m - log(sum).
// A line whose entries are all -inf (fully masked) gives zeros, and -inf with is_log; it never gives NaN.
struct SoftmaxForward {
  static constexpr std::string_view name = "softmax";
  In x;          // any shape with at least 1 dim, contiguous
  int dim;       // 0 … num_dims - 1
  bool is_log;
  Out out;       // shape of x
};
void validate(const SoftmaxForward& k);
Cost cost(const SoftmaxForward& k);
void run(Cpu, const SoftmaxForward& k);
void run(Cuda, const SoftmaxForward& k);

// grad_x = y * (g - sum(g * y)) for softmax, g - exp(y) * sum(g) for log-softmax, with g = grad_out.
struct SoftmaxBackward {
  static constexpr std::string_view name = "softmax_backward";
  In y, grad_out;  // the forward's output and its gradient, contiguous
  int dim;
  bool is_log;
  Out out;         // grad_x
};
void validate(const SoftmaxBackward& k);
Cost cost(const SoftmaxBackward& k);
void run(Cpu, const SoftmaxBackward& k);
void run(Cuda, const SoftmaxBackward& k);

}  // namespace refrain
