// Attention on CUDA against the CPU's kernel in f64 on the same, rounded inputs, element by element within a bound from the
// roundings on the way: with u the unit of the tensors' dtype and ε what a probability may be off by, relatively,
//
//   out:    u·|out| + (u + ε)·Σ p·|v|
//   grad_v: u·|grad| + (u + ε)·Σ p·|grad_out|
//   grad_q: u·|grad| + (u + ε)·scale·Σ M·|k|,   M = p·(Σ |grad_out|·|v| + Σ |grad_out|·|out|), and grad_k alike
//
// The second u is that of probabilities and score gradients, which the tensor cores take in 16 bits; an f16 below 2^-14 is off by
// 2^-25 besides. ε is made of the roundings of a score (its head dim's products, in units of the largest sum of magnitudes),
// of the exponential and of the sums; f32's unit counts twice, as tensor cores cut off what they add.
#pragma once

#include <refrain/core/view.h>
#include <refrain/kernels/attention/attention.h>
#include <refrain/tests/cuda/parity.h>

#include <cmath>
#include <limits>

namespace refrain::attention_test {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

// How tensors lie: in rows of their own, in a packed [B, T, 3, H, D], or a number past an aligned address with odd steps.
enum class Layout { plain, packed, misaligned };

struct Case {
  std::int64_t batch, heads, queries, keys, width;
  bool is_causal = false, is_masked = false;
  double dropout = 0;
  Layout layout = Layout::plain;
  std::int64_t first_element = 24;
  double scale = 0;  // 0: the usual one
};

// A [B, T, H, D] in a layout, and the tensor that holds it.
struct Placed {
  Tensor view, all;
};

inline Placed place(Layout layout, const Tensor& all) {
  switch (layout) {
    case Layout::packed: return {view::select(all, 2, 1), all};
    case Layout::misaligned: return {view::slice(all, 3, 1, all.dim(3)), all};
    default: return {all, all};
  }
}

inline Shape shape_in(Layout layout, const Shape& s) {
  switch (layout) {
    case Layout::packed: return {s[0], s[1], 3, s[2], s[3]};
    case Layout::misaligned: return {s[0], s[1], s[2], s[3] + 1};
    default: return s;
  }
}

inline Tensor in_layout(Layout layout, const Tensor& values) {
  const Placed placed = place(layout, full(shape_in(layout, values.shape()), 77, values.dtype()));
  copy_values(placed.view, values);
  return place(layout, on_cuda(placed.all)).view;
}

inline Placed output(Layout layout, const Shape& shape, DType dtype) {
  return place(layout, poisoned(shape_in(layout, shape), dtype, cuda_device()));
}

// Whether nothing beside the view was written: as many numbers are left over as there were.
inline bool is_intact(const Placed& placed) {
  std::int64_t untouched = 0, inside = 0;
  for (const double x : on_cpu(placed.all).to_vector<double>()) untouched += std::isnan(x);
  for (const double x : on_cpu(placed.view).to_vector<double>()) inside += std::isnan(x);
  return untouched - inside == placed.all.numel() - placed.view.numel();
}

struct Inputs {
  Case c;
  Tensor q, k, v, mask, grad_out;  // on the CPU
  double scale;
  RandomKey key{.seed = 0x123456789abcdef, .step = 3, .stage = 2, .call = 1};
  Shape queries() const { return q.shape(); }
  Shape keys() const { return k.shape(); }
  Shape sums() const { return {c.batch, c.heads, c.queries}; }
};

inline Inputs make(const Case& c, DType dtype) {
  const Shape queries{c.batch, c.queries, c.heads, c.width}, keys{c.batch, c.keys, c.heads, c.width};
  Inputs in{c,
            random_tensor(queries, dtype, 1),
            random_tensor(keys, dtype, 2),
            random_tensor(keys, dtype, 3),
            {},
            random_tensor(queries, dtype, 4),
            c.scale != 0 ? c.scale : default_attention_scale(c.width)};
  if (c.is_masked) {
    // Sample 0 attends to nothing, sample 1 ends in padding, the others have holes.
    std::vector<std::uint8_t> bytes;
    for (std::int64_t b = 0; b < c.batch; ++b) {
      for (std::int64_t j = 0; j < c.keys; ++j)
        bytes.push_back(b == 0 ? 0 : b == 1 ? j < (c.keys + 1) / 2 : std::uint8_t((j * 5 + b) % 3));
    }
    in.mask = from_values(bytes, {c.batch, c.keys});
  }
  return in;
}

inline AttentionForward forward_of(const Inputs& in, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask,
                                   const Tensor& out, const Tensor& lse) {
  return {.q = q,
          .k = k,
          .v = v,
          .key_mask = mask,
          .causal = in.c.is_causal,
          .scale = in.scale,
          .dropout = in.c.dropout,
          .key = in.key,
          .first_element = in.c.first_element,
          .out = out,
          .lse = lse};
}

struct Outputs {
  Tensor out, lse, grad_q, grad_k, grad_v;  // on the CPU
  std::vector<Tensor> all() const { return {out, lse, grad_q, grad_k, grad_v}; }
};

// Forward and backward on CUDA.
inline Outputs on_device(const Inputs& in) {
  const Layout layout = in.c.layout;
  const DType dtype = in.q.dtype();
  const Tensor q = in_layout(layout, in.q), k = in_layout(layout, in.k), v = in_layout(layout, in.v),
               grad = in_layout(layout, in.grad_out);
  const Tensor mask = on_cuda(in.mask), lse = poisoned(in.sums(), accumulator_dtype(dtype), cuda_device());
  const Placed out = output(layout, in.queries(), dtype), grad_q = output(layout, in.queries(), dtype);
  const Placed grad_k = output(layout, in.keys(), dtype), grad_v = output(layout, in.keys(), dtype);
  launch(forward_of(in, q, k, v, mask, out.view, lse));
  const Tensor scratch = poisoned({numel_of(in.sums())}, DType::f32, cuda_device());
  launch(AttentionBackward{.q = q,
                           .k = k,
                           .v = v,
                           .key_mask = mask,
                           .causal = in.c.is_causal,
                           .scale = in.scale,
                           .dropout = in.c.dropout,
                           .key = in.key,
                           .first_element = in.c.first_element,
                           .attended = out.view,
                           .lse = lse,
                           .grad_out = grad,
                           .out = grad_q.view,
                           .grad_k = grad_k.view,
                           .grad_v = grad_v.view,
                           .scratch = scratch});
  for (const Placed& placed : {out, grad_q, grad_k, grad_v}) CHECK(is_intact(placed));
  return {on_cpu(out.view), on_cpu(lse), on_cpu(grad_q.view), on_cpu(grad_k.view), on_cpu(grad_v.view)};
}

inline Tensor as_f64(const Tensor& t) { return tensor_of(t.to_vector<double>(), t.shape(), DType::f64); }

// The CPU's f64 results from the same inputs; backward from the output and log-sum-exp that the device made.
inline Outputs exact(const Inputs& in, const Outputs& got) {
  const Tensor q = as_f64(in.q), k = as_f64(in.k), v = as_f64(in.v), attended = as_f64(got.out), lse = as_f64(got.lse);
  Outputs e{empty(q.shape(), DType::f64), empty(in.sums(), DType::f64), empty(q.shape(), DType::f64),
            empty(k.shape(), DType::f64), empty(k.shape(), DType::f64)};
  launch(forward_of(in, q, k, v, in.mask, e.out, e.lse));
  launch(AttentionBackward{.q = q,
                           .k = k,
                           .v = v,
                           .key_mask = in.mask,
                           .causal = in.c.is_causal,
                           .scale = in.scale,
                           .dropout = in.c.dropout,
                           .key = in.key,
                           .first_element = in.c.first_element,
                           .attended = attended,
                           .lse = lse,
                           .grad_out = as_f64(in.grad_out),
                           .out = e.grad_q,
                           .grad_k = e.grad_k,
                           .grad_v = e.grad_v});
  return e;
}

struct Units {
  double stored, wide, tiny;  // of the tensors, of what is summed, and what 16-bit operands below the normal range are off by
};
inline Units units_of(DType dtype) {
  switch (dtype) {
    case DType::f16: return {0x1p-11, 0x1p-23, 0x1p-25};
    case DType::bf16: return {0x1p-8, 0x1p-23, 0x1p-126};
    case DType::f32: return {0x1p-24, 0x1p-23, 0x1p-126};
    default: return {0x1p-53, 0x1p-52, 0};
  }
}

// Bounds of the five results, as described above.
struct Bounds {
  std::vector<double> out, lse, grad_q, grad_k, grad_v;
};

inline Bounds bounds(const Inputs& in, const Outputs& e, const Outputs& got) {
  const Case& c = in.c;
  const Units u = units_of(in.q.dtype());
  const auto q = in.q.to_vector<double>(), k = in.k.to_vector<double>(), v = in.v.to_vector<double>(),
             g = in.grad_out.to_vector<double>();
  const auto out = got.out.to_vector<double>(), lse = got.lse.to_vector<double>();
  const auto mask = in.mask ? in.mask.to_vector<double>() : std::vector<double>(std::size_t(c.batch * c.keys), 1);
  const std::uint32_t threshold = std::uint32_t(c.dropout * 0x1p32);
  Bounds b{e.out.to_vector<double>(), e.lse.to_vector<double>(), e.grad_q.to_vector<double>(), e.grad_k.to_vector<double>(),
           e.grad_v.to_vector<double>()};
  for (std::vector<double>* each : {&b.out, &b.grad_q, &b.grad_k, &b.grad_v}) {
    for (double& x : *each) x = u.stored * std::abs(x) + u.tiny;
  }
  const double scale = std::abs(in.scale), kept = 1 / (1 - c.dropout);
  for (std::int64_t head = 0; head < c.batch * c.heads; ++head) {
    const auto at = [&](std::int64_t length, std::int64_t i) {
      return std::size_t(((head / c.heads * length + i) * c.heads + head % c.heads) * c.width);
    };
    for (std::int64_t i = 0; i < c.queries; ++i) {
      const std::int64_t row = head * c.queries + i;
      const std::size_t qi = at(c.queries, i);
      double delta = 0, largest = 1;
      for (std::size_t d = 0; d < std::size_t(c.width); ++d) delta += std::abs(g[qi + d] * out[qi + d]);
      std::vector<double> dot(std::size_t(c.keys), 0);
      for (std::int64_t j = 0; j < c.keys; ++j) {
        double sum = 0;
        for (std::size_t d = 0; d < std::size_t(c.width); ++d) {
          sum += std::abs(q[qi + d] * k[at(c.keys, j) + d]);
          dot[std::size_t(j)] += q[qi + d] * k[at(c.keys, j) + d];
        }
        largest = std::max(largest, scale * sum);
      }
      // A score and the largest of its row are off by a rounding a product and a few more, in units of the largest; then come a
      // sum's roundings and the exponential's.
      const double epsilon = u.wide * (2 * double(c.width + 4) * largest + double(c.keys + c.queries + 16));
      b.lse[std::size_t(row)] = std::isinf(lse[std::size_t(row)]) ? 0 : epsilon;
      for (std::int64_t j = 0; j < c.keys; ++j) {
        if (mask[std::size_t(head / c.heads * c.keys + j)] == 0 || (c.is_causal && j > i + c.keys - c.queries)) continue;
        const std::size_t kj = at(c.keys, j);
        const bool is_kept = in.key.word(std::uint64_t(c.first_element + row * c.keys + j)) >= threshold;
        const double p = std::exp(in.scale * dot[std::size_t(j)] - lse[std::size_t(row)]), z = is_kept ? kept : 0;
        double grad_p = 0;
        for (std::size_t d = 0; d < std::size_t(c.width); ++d) grad_p += std::abs(g[qi + d] * v[kj + d]) * z;
        const double error = (u.stored + epsilon) * p * z + u.tiny,
                     error_s = scale * ((u.stored + epsilon) * p * (grad_p + delta) + u.tiny);
        for (std::size_t d = 0; d < std::size_t(c.width); ++d) {
          b.out[qi + d] += error * std::abs(v[kj + d]);
          b.grad_v[kj + d] += error * std::abs(g[qi + d]);
          b.grad_q[qi + d] += error_s * std::abs(k[kj + d]);
          b.grad_k[kj + d] += error_s * std::abs(q[qi + d]);
        }
      }
    }
  }
  return b;
}

// The largest share of its bound that an element uses: above 1 it is broken, infinity for NaN.
inline double share(const Tensor& got, const Tensor& expected, const std::vector<double>& bound) {
  const auto x = got.to_vector<double>(), y = expected.to_vector<double>();
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i]) continue;
    const double difference = std::abs(x[i] - y[i]);
    worst = std::isnan(difference) || std::isinf(difference) ? kInfinity : std::max(worst, difference / bound[i]);
  }
  return worst;
}

inline void check(const Case& c, DType dtype) {
  CAPTURE(c.batch, c.heads, c.queries, c.keys, c.width, c.is_causal, c.is_masked, c.dropout, int(c.layout), c.scale,
          name_of(dtype));
  const Inputs in = make(c, dtype);
  const Outputs got = on_device(in), e = exact(in, got);
  const Bounds bound = bounds(in, e, got);
  CHECK(share(got.out, e.out, bound.out) <= 1);
  CHECK(share(got.lse, e.lse, bound.lse) <= 1);
  CHECK(share(got.grad_q, e.grad_q, bound.grad_q) <= 1);
  CHECK(share(got.grad_k, e.grad_k, bound.grad_k) <= 1);
  CHECK(share(got.grad_v, e.grad_v, bound.grad_v) <= 1);
  if (!c.is_masked || c.batch == 0) return;
  for (const Tensor& t : {got.out, got.grad_q, got.grad_k, got.grad_v}) {
    for (const double x : view::select(t, 0, 0).to_vector<double>()) CHECK(x == 0);
  }
  for (const double x : view::select(got.lse, 0, 0).to_vector<double>()) CHECK(x == -kInfinity);
}

}  // namespace refrain::attention_test
