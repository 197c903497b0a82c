// What every CUDA attention kernel is told: where the rows of a head lie, and which pairs of query and key count. Dropout
// draws the numbers of core/random.h, so a pair that the CPU's kernels drop is dropped here.
#pragma once

#include <refrain/kernels/attention/attention.h>
#include <refrain/kernels/common/cuda/random.cuh>
#include <refrain/kernels/common/cuda/reduce.cuh>

#include <algorithm>
#include <cmath>

namespace refrain::attention_kernels {

// The rows of a [B, T, H, D] view: steps are in elements.
template <class T>
struct Heads {
  T* data = nullptr;
  std::int64_t sample_step = 0, row_step = 0, head_step = 0;
  bool is_aligned = false;  // every row starts at a multiple of 16 bytes

  __device__ T* rows(std::int64_t sample, std::int64_t head) const { return data + sample * sample_step + head * head_step; }
};

template <class T, class Arg>
Heads<T> heads_of(const Arg& arg) {
  if (!arg.defined() || !arg.has_bytes()) return {};
  const Strides& steps = arg.strides();
  bool is_aligned = cuda::is_aligned(arg.address(), 16);
  for (int i = 0; i < 3; ++i) is_aligned = is_aligned && (arg.dim(i) <= 1 || steps[i] * std::int64_t(sizeof(T)) % 16 == 0);
  return {cuda::data_of<T>(arg), steps[0], steps[1], steps[2], is_aligned};
}

struct Pairs {
  const std::uint8_t* mask;  // null: every key counts
  std::int64_t mask_sample_step, mask_key_step;
  std::int64_t first_element;
  cuda::RandomStream random;
  std::uint32_t threshold;  // a pair is dropped where its random word is below
  int num_heads, num_queries, num_keys, head_dim;
  bool is_causal, has_dropout;
  double scale, kept;  // kept: 1 / (1 - dropout)

  // The key that query 0 sees last, when causal.
  __device__ int diagonal() const { return num_keys - num_queries; }
  // Keys from here on are hidden from all queries before `end`.
  __device__ int end_of_keys(int end) const {
    return is_causal ? max(0, min(num_keys, min(num_queries, end) + diagonal())) : num_keys;
  }
  // Queries before this one see no key from `begin` on.
  __device__ int first_query(int begin) const { return is_causal ? max(0, begin - diagonal()) : 0; }
  // Whether some pair of queries from first_query on and keys before end_key does not count.
  __device__ bool hides_any(int first_query, int end_key) const {
    return mask != nullptr || end_key > num_keys || (is_causal && end_key - 1 > first_query + diagonal());
  }
  __device__ bool is_visible(int sample, int query, int key) const {
    if (key >= num_keys || (is_causal && key > query + diagonal())) return false;
    return mask == nullptr || mask[sample * mask_sample_step + key * mask_key_step] != 0;
  }
  // Of the pair (query, key 0) of head `head`, counted over samples.
  __device__ std::int64_t element(std::int64_t head, int query) const {
    return first_element + (head * num_queries + query) * std::int64_t(num_keys);
  }
};

template <class K>
Pairs pairs_of(const K& k) {
  Pairs pairs{.mask = nullptr,
              .mask_sample_step = 0,
              .mask_key_step = 0,
              .first_element = k.first_element,
              .random = cuda::RandomStream(k.key),
              .threshold = std::uint32_t(k.dropout * 0x1p32),
              .num_heads = int(k.q.dim(2)),
              .num_queries = int(k.q.dim(1)),
              .num_keys = int(k.k.dim(1)),
              .head_dim = int(k.q.dim(3)),
              .is_causal = k.causal,
              .has_dropout = k.dropout > 0,
              .scale = k.scale,
              .kept = 1 / (1 - k.dropout)};
  if (k.key_mask.defined() && k.key_mask.numel() > 0) {
    pairs.mask = cuda::data_of<std::uint8_t>(k.key_mask);
    pairs.mask_sample_step = k.key_mask.strides()[0];
    pairs.mask_key_step = k.key_mask.strides()[1];
  }
  return pairs;
}

// A scale as the tensor-core kernels take it. Its sign is moved into the bits of the left operands, where it rounds nothing: the
// largest score is then the largest product.
struct ScaleParts {
  float magnitude;
  float exponent;  // magnitude · log2(e): probabilities are made as powers of two
  unsigned flip;   // to be xored into a pair of 16-bit numbers
};
inline ScaleParts scale_parts(double scale) {
  // A product with 0 would make NaN of a hidden pair's -inf; scores times 2^-100 are 0 to exp().
  const double magnitude = std::max(std::abs(scale), 0x1p-100);
  return {float(magnitude), float(magnitude * 1.4426950408889634074), scale < 0 ? 0x80008000u : 0u};
}

// One past the last key of [begin, end) that the mask shows, `begin` when it shows none. Every thread of a block of kThreads
// calls it and gets the answer: padding at a sequence's end costs no tile.
template <int kThreads>
__device__ int end_of_visible_keys(const Pairs& pairs, int sample, int begin, int end) {
  if (pairs.mask == nullptr) return end;
  REFRAIN_SHARED(int, slots, [kThreads / cuda::kWarp]);
  int last = begin;
  for (int key = begin + int(threadIdx.x); key < end; key += kThreads) {
    if (pairs.mask[sample * pairs.mask_sample_step + key * pairs.mask_key_step] != 0) last = key + 1;
  }
  return cuda::block_reduce<kThreads, cuda::Larger>(last, slots);
}

// Sums of a query, delta: grad_out · out, which the softmax's derivative subtracts from every score's gradient.
void run_delta(Cuda device, const AttentionBackward& k);
// Tiles of any floating dtype and head dim, without tensor cores.
void run_generic(Cuda device, const AttentionForward& k);
void run_generic(Cuda device, const AttentionBackward& k);

}  // namespace refrain::attention_kernels
