// Scaled dot-product attention over heads. Saves q, k, v (or the packed tensor once), the output and the log-sum-exp;
// never the Tq×Tk matrix, never a dropout mask.
#pragma once

#include <refrain/core/tensor.h>

#include <optional>

namespace refrain {

struct AttentionOptions {
  // Query i attends to keys 0 … i + Tk - Tq: the last query sees every key.
  bool causal = false;
  // Factor of q·k before the softmax; 1/√D if not given.
  std::optional<double> scale = {};
  // Probability that a weight is dropped, at least 0 and below 1. The caller passes 0 outside training.
  double dropout = 0;
  // [B, Tk] bool or u8: key j of sample b may be attended to where it is not 0. A query that may attend to no key gives
  // zeros and zero gradients.
  Tensor key_mask = {};
};

// softmax(scale·q·kᵀ)·v for each sample and head: q [B, Tq, H, D], k and v [B, Tk, H, D], any strides → [B, Tq, H, D].
// Any floating dtype, one for all three; f16 and bf16 are multiplied, scaled and summed in f32, results rounded once. In a
// mixed mode q, k and v are rounded to 16 bits first. D at most 256. Throws InvalidArgument for other shapes and dtypes.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options = {});

// Self-attention of q, k and v that lie side by side as one linear layer makes them: qkv [B, T, 3·C], each C = H·D wide
// → [B, T, C]. The gradient is written as one packed tensor.
Tensor attention_packed(const Tensor& qkv, std::int64_t num_heads, const AttentionOptions& options = {});

}  // namespace refrain
