// Scaled dot-product attention, softmax(scale·q·kᵀ)·v per sample and head, in tiles: the Tq×Tk matrix is never stored.
// Forward is the online softmax of Milakov and Gimelshein ("Online normalizer calculation for softmax", 2018), backward
// recomputes probabilities from the log-sum-exp as in Dao et al. ("FlashAttention", 2022). Any floating dtype; f16 and bf16
// are widened a tile at a time, scores are scaled, and everything is summed, in f32, and results are rounded once.
#pragma once

#include <refrain/core/random.h>
#include <refrain/kernels/kernel.h>

namespace refrain {

// Head dims above this are refused: tiles live on the stack.
inline constexpr std::int64_t kMaxHeadDim = 256;

// 1/√D.
double default_attention_scale(std::int64_t head_dim);

// B samples, H heads, Tq queries, Tk keys, D numbers a head. Tensors may be strided views (of a packed [B, T, 3, H, D],
// say) as long as the last dim is contiguous.
//
// causal: query i attends to keys 0 … i + Tk - Tq, so that the last query sees every key.
// key_mask: key j of sample b may be attended to where it is not 0.
// A query that may attend to no key gives zeros, a log-sum-exp of -inf, and zero gradients.
// dropout: probability that a weight is dropped; weight (b, h, i, j) has element index
// first_element + ((b·H + h)·Tq + i)·Tk + j in the stream of `key`.
struct AttentionForward {
  static constexpr std::string_view name = "attention";
  In q, k, v;                // [B, Tq, H, D] [B, Tk, H, D] [B, Tk, H, D]
  OptionalIn key_mask = {};  // [B, Tk] bool or u8
  bool causal = false;
  double scale;
  double dropout = 0;
  RandomKey key = {};
  std::int64_t first_element = 0;
  Out out;               // [B, Tq, H, D]
  OptionalOut lse = {};  // [B, H, Tq] accumulator type, contiguous: log of the sum of exp(scale·q·k)
};
void validate(const AttentionForward&);
Cost cost(const AttentionForward&);
void run(Cpu, const AttentionForward&);
void run(Cuda, const AttentionForward&);

// The gradients of q, k and v; those without bytes are left out.
struct AttentionBackward {
  static constexpr std::string_view name = "attention_backward";
  In q, k, v;
  OptionalIn key_mask = {};
  bool causal = false;
  double scale;
  double dropout = 0;
  RandomKey key = {};
  std::int64_t first_element = 0;
  In attended;  // forward's out
  In lse;       // forward's lse
  In grad_out;  // [B, Tq, H, D]
  Out out;      // gradient of q
  OptionalOut grad_k = {}, grad_v = {};
  OptionalOut scratch = {};  // f32 [num_scratch()], needed where that is not 0
  // On a CUDA device: the sum of grad_out · attended of each query.
  static std::int64_t num_scratch(DeviceKind target, std::int64_t num_samples, std::int64_t num_heads, std::int64_t num_queries) {
    return target == DeviceKind::cuda ? num_samples * num_heads * num_queries : 0;
  }
};
void validate(const AttentionBackward&);
Cost cost(const AttentionBackward&);
void run(Cpu, const AttentionBackward&);
void run(Cuda, const AttentionBackward&);

}  // namespace refrain
