#include <refrain/kernels/attention/attention.h>

#include <algorithm>
#include <cmath>

namespace refrain {

namespace {

void check_heads(std::string_view name, std::string_view argument, const TensorArg& arg, const Shape& expected, DType dtype) {
  check_dtype(name, argument, arg, dtype);
  check_shape(name, argument, arg, expected);
  check(arg.strides()[3] == 1 || arg.dim(3) == 1, name, ": the last dim of ", argument, " must be contiguous, got strides ", arg.strides());
}

Shape lse_shape(const In& q) { return {q.dim(0), q.dim(2), q.dim(1)}; }

template <class K>
void validate_common(const K& k) {
  check_floating(K::name, "q", k.q);
  check(k.q.num_dims() == 4, K::name, ": q must be [B, Tq, H, D], got ", k.q.shape());
  check(k.k.num_dims() == 4, K::name, ": k must be [B, Tk, H, D], got ", k.k.shape());
  const std::int64_t batch = k.q.dim(0), heads = k.q.dim(2), width = k.q.dim(3), keys = k.k.dim(1);
  check(width >= 1 && width <= kMaxHeadDim, K::name, ": head dim must be 1 … ", kMaxHeadDim, ", got ", width);
  check_heads(K::name, "q", k.q, k.q.shape(), k.q.dtype());
  check_heads(K::name, "k", k.k, {batch, keys, heads, width}, k.q.dtype());
  check_heads(K::name, "v", k.v, {batch, keys, heads, width}, k.q.dtype());
  if (k.key_mask) {
    check(k.key_mask.dtype() == DType::boolean || k.key_mask.dtype() == DType::u8, K::name, ": key_mask must be bool or u8, got ",
          k.key_mask.dtype());
    check_shape(K::name, "key_mask", k.key_mask, {batch, keys});
  }
  check(std::isfinite(k.scale), K::name, ": scale must be finite, got ", k.scale);
  check(k.dropout >= 0 && k.dropout < 1, K::name, ": dropout must be at least 0 and below 1, got ", k.dropout);
  check(k.first_element >= 0, K::name, ": first_element must not be negative, got ", k.first_element);
}

template <class K>
double attended_pairs(const K& k) {
  const double queries = double(k.q.dim(1)), keys = double(k.k.dim(1));
  double pairs = queries * keys;
  if (k.causal) {
    // The last queries see keys, keys - 1, … of them, those before none.
    const double seeing = std::min(queries, keys);
    pairs = seeing * (keys + keys - seeing + 1) / 2;
  }
  return pairs * double(k.q.dim(0) * k.q.dim(2));
}

}  // namespace

double default_attention_scale(std::int64_t head_dim) { return 1 / std::sqrt(double(head_dim)); }

void validate(const AttentionForward& k) {
  validate_common(k);
  check_heads(k.name, "out", k.out, k.q.shape(), k.q.dtype());
  if (k.lse) {
    check_dtype(k.name, "lse", k.lse, accumulator_dtype(k.q.dtype()));
    check_shape(k.name, "lse", k.lse, lse_shape(k.q));
    check_contiguous(k.name, "lse", k.lse);
  }
}

Cost cost(const AttentionForward& k) {
  return {.flops = 4 * attended_pairs(k) * double(k.q.dim(3)),
          .bytes = k.q.bytes() + k.k.bytes() + k.v.bytes() + k.out.bytes() + k.lse.bytes()};
}

void validate(const AttentionBackward& k) {
  validate_common(k);
  check_heads(k.name, "attended", k.attended, k.q.shape(), k.q.dtype());
  check_heads(k.name, "grad_out", k.grad_out, k.q.shape(), k.q.dtype());
  check_dtype(k.name, "lse", k.lse, accumulator_dtype(k.q.dtype()));
  check_shape(k.name, "lse", k.lse, lse_shape(k.q));
  check_contiguous(k.name, "lse", k.lse);
  check_heads(k.name, "grad_q", k.out, k.q.shape(), k.q.dtype());
  if (k.grad_k) check_heads(k.name, "grad_k", k.grad_k, k.k.shape(), k.q.dtype());
  if (k.grad_v) check_heads(k.name, "grad_v", k.grad_v, k.k.shape(), k.q.dtype());
  if (const std::int64_t scratch = AttentionBackward::num_scratch(k.out.target(), k.q.dim(0), k.q.dim(2), k.q.dim(1))) {
    check(k.scratch.defined(), k.name, ": scratch must be [", scratch, "], got none");
    check_shape(k.name, "scratch", k.scratch, {scratch});
    check_dtype(k.name, "scratch", k.scratch, DType::f32);
    check_contiguous(k.name, "scratch", k.scratch);
  }
}

Cost cost(const AttentionBackward& k) {
  return {.flops = 10 * attended_pairs(k) * double(k.q.dim(3)),
          .bytes = 2 * k.q.bytes() + k.k.bytes() + k.v.bytes() + k.grad_out.bytes() + k.lse.bytes() + k.out.bytes() + k.grad_k.bytes() +
                   k.grad_v.bytes()};
}

}  // namespace refrain
