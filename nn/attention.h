// Multi-head self-attention. Vaswani et al., "Attention is all you need", 2017.
#pragma once

#include <refrain/nn/linear.h>

namespace refrain {

struct MultiHeadAttentionOptions {
  bool causal = false;  // a token sees itself and what is before it
  double dropout = 0;   // of attention weights, in training mode
  bool bias = true;
  // PyTorch's default values: xavier over the packed weight, zero biases.
  Init qkv_init = Init::xavier_uniform();
  Init proj_init = Init::kaiming_uniform(std::sqrt(5.0));
};

// Queries, keys and values from one packed linear.
class MultiHeadAttention : public Module {
 public:
  // Throws InvalidArgument unless width is a multiple of num_heads and dropout is in [0, 1).
  MultiHeadAttention(std::int64_t width, std::int64_t num_heads, const MultiHeadAttentionOptions& options = {});
  // [B, T, C] → [B, T, C]; key_mask is bool [B, T], true where a key may be seen.
  Tensor operator()(const Tensor& x, const Tensor& key_mask = {}) const;
  std::int64_t num_heads() const { return num_heads_; }

  std::shared_ptr<Linear> qkv;   // [C → 3C]: queries, keys, values, each with its heads side by side
  std::shared_ptr<Linear> proj;  // [C → C]

 private:
  std::int64_t num_heads_;
  bool causal_;
  double dropout_;
};

// The same arithmetic from three linears that share their input, as many published models lay it out.
class SeparateAttention : public Module {
 public:
  SeparateAttention(std::int64_t width, std::int64_t num_heads, const MultiHeadAttentionOptions& options = {});
  // [B, T, C] → [B, T, C]; key_mask is bool [B, T], true where a key may be seen.
  Tensor operator()(const Tensor& x, const Tensor& key_mask = {}) const;

  std::shared_ptr<Linear> query, key, value, proj;  // [C → C]

 private:
  std::int64_t num_heads_;
  bool causal_;
  double dropout_;
};

}  // namespace refrain
