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
#include <refrain/core/view.h>
#include <refrain/kernels/attention/attention.h>
#include <refrain/tests/cuda/parity.h>

#include <cmath>
#include <limits>

using namespace refrain;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

Placed place(Layout layout, const Tensor& all) {
  switch (layout) {
    case Layout::packed: return {view::select(all, 2, 1), all};
    case Layout::misaligned: return {view::slice(all, 3, 1, all.dim(3)), all};
    default: return {all, all};
  }
}

Shape shape_in(Layout layout, const Shape& s) {
  switch (layout) {
    case Layout::packed: return {s[0], s[1], 3, s[2], s[3]};
    case Layout::misaligned: return {s[0], s[1], s[2], s[3] + 1};
    default: return s;
  }
}

Tensor in_layout(Layout layout, const Tensor& values) {
  const Placed placed = place(layout, full(shape_in(layout, values.shape()), 77, values.dtype()));
  copy_values(placed.view, values);
  return place(layout, on_cuda(placed.all)).view;
}

Placed output(Layout layout, const Shape& shape, DType dtype) {
  return place(layout, poisoned(shape_in(layout, shape), dtype, cuda_device()));
}

// Whether nothing beside the view was written: as many numbers are left over as there were.
bool is_intact(const Placed& placed) {
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

Inputs make(const Case& c, DType dtype) {
  const Shape queries{c.batch, c.queries, c.heads, c.width}, keys{c.batch, c.keys, c.heads, c.width};
  Inputs in{c, random_tensor(queries, dtype, 1), random_tensor(keys, dtype, 2), random_tensor(keys, dtype, 3), {},
            random_tensor(queries, dtype, 4), c.scale != 0 ? c.scale : default_attention_scale(c.width)};
  if (c.is_masked) {
    // Sample 0 attends to nothing, sample 1 ends in padding, the others have holes.
    std::vector<std::uint8_t> bytes;
    for (std::int64_t b = 0; b < c.batch; ++b) {
      for (std::int64_t j = 0; j < c.keys; ++j) bytes.push_back(b == 0 ? 0 : b == 1 ? j < (c.keys + 1) / 2 : std::uint8_t((j * 5 + b) % 3));
    }
    in.mask = from_values(bytes, {c.batch, c.keys});
  }
  return in;
}

AttentionForward forward_of(const Inputs& in, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask, const Tensor& out,
                            const Tensor& lse) {
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
Outputs on_device(const Inputs& in) {
  const Layout layout = in.c.layout;
  const DType dtype = in.q.dtype();
  const Tensor q = in_layout(layout, in.q), k = in_layout(layout, in.k), v = in_layout(layout, in.v), grad = in_layout(layout, in.grad_out);
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

Tensor as_f64(const Tensor& t) { return tensor_of(t.to_vector<double>(), t.shape(), DType::f64); }

// The CPU's f64 results from the same inputs; backward from the output and log-sum-exp that the device made.
Outputs exact(const Inputs& in, const Outputs& got) {
  const Tensor q = as_f64(in.q), k = as_f64(in.k), v = as_f64(in.v), attended = as_f64(got.out), lse = as_f64(got.lse);
  Outputs e{empty(q.shape(), DType::f64), empty(in.sums(), DType::f64), empty(q.shape(), DType::f64), empty(k.shape(), DType::f64),
            empty(k.shape(), DType::f64)};
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
Units units_of(DType dtype) {
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

Bounds bounds(const Inputs& in, const Outputs& e, const Outputs& got) {
  const Case& c = in.c;
  const Units u = units_of(in.q.dtype());
  const auto q = in.q.to_vector<double>(), k = in.k.to_vector<double>(), v = in.v.to_vector<double>(), g = in.grad_out.to_vector<double>();
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
        const double error = (u.stored + epsilon) * p * z + u.tiny, error_s = scale * ((u.stored + epsilon) * p * (grad_p + delta) + u.tiny);
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
double share(const Tensor& got, const Tensor& expected, const std::vector<double>& bound) {
  const auto x = got.to_vector<double>(), y = expected.to_vector<double>();
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i]) continue;
    const double difference = std::abs(x[i] - y[i]);
    worst = std::isnan(difference) || std::isinf(difference) ? kInfinity : std::max(worst, difference / bound[i]);
  }
  return worst;
}

void check(const Case& c, DType dtype) {
  CAPTURE(c.batch, c.heads, c.queries, c.keys, c.width, c.is_causal, c.is_masked, c.dropout, int(c.layout), c.scale, name_of(dtype));
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

// The head dims of the tensor-core kernels.
const std::vector<std::int64_t> kTensorDims = {32, 64, 80, 96, 128};

}  // namespace

TEST_CASE("cuda attention: every length around a tile's, of queries and keys alike or not") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    for (const std::int64_t length : {1, 15, 16, 17, 63, 64, 65, 130}) check({1, 1, length, length, 32, length % 2 == 0}, dtype);
    check({1, 2, 3, 70, 32}, dtype);
    check({1, 2, 70, 3, 32}, dtype);
  }
}

TEST_CASE("cuda attention: every head dim with a tensor-core kernel") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t width : kTensorDims) {
      check({2, 1, 66, 130, width, true, true, 0.25}, dtype);
      check({1, 2, 130, 65, width, false, false, 0, Layout::packed}, dtype);
    }
  }
}

TEST_CASE("cuda attention: other head dims, f32 and f64 go without tensor cores") {
  for (const std::int64_t width : {1, 24, 63, 65, 128, 136, 256}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      if (width == 128 && size_of(dtype) == 2) continue;
      check({2, 1, 33, 34, width, true, true, 0.25, width % 2 ? Layout::misaligned : Layout::packed}, dtype);
    }
  }
  check({1, 1, 65, 67, 64, false, false, 0}, DType::f32);
  check({1, 1, 65, 67, 64, true, false, 0.5}, DType::f64);
}

TEST_CASE("cuda attention: the last query sees every key, and queries before the first key see none") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    check({1, 2, 17, 100, 64, true}, dtype);
    check({1, 2, 100, 17, 64, true}, dtype);  // the first 83 queries see nothing
    check({1, 1, 129, 64, 64, true}, dtype);
  }
}

TEST_CASE("cuda attention: masked keys weigh nothing, wherever they are") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    check({3, 1, 40, 140, 32, false, true}, dtype);
    check({3, 1, 70, 70, 64, true, true, 0, Layout::packed}, dtype);
  }
}

TEST_CASE("cuda attention: rows that are not aligned to 16 bytes") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const std::int64_t width : {std::int64_t{32}, std::int64_t{80}}) check({1, 2, 65, 66, width, true, false, 0.1, Layout::misaligned}, dtype);
  }
}

TEST_CASE("cuda attention: dropout drops the pairs that it drops on the CPU, in every alignment of its blocks of numbers") {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const std::int64_t keys : {64, 65, 66, 67}) {
      for (const std::int64_t first : {std::int64_t{0}, std::int64_t{3}, (std::int64_t{1} << 33) + 4}) {
        // Equal scores and v the unit matrix's rows: the output tells of every pair whether it was kept.
        Case c{1, 2, 70, keys, 128, false, false, 0.5};
        c.first_element = first;
        CAPTURE(keys, first, name_of(dtype));
        Inputs in = make(c, dtype);
        fill_values(in.q, 0);
        std::vector<double> unit(std::size_t(keys * 2 * 128), 0);
        for (std::int64_t j = 0; j < keys; ++j) {
          for (std::int64_t h = 0; h < 2; ++h) unit[std::size_t((j * 2 + h) * 128 + j)] = 1;
        }
        in.v = tensor_of(unit, in.keys(), dtype);
        // With grad_out the unit matrix too, grad_v is the transposed matrix of dropped-out probabilities.
        std::vector<double> rows(std::size_t(70 * 2 * 128), 0);
        for (std::int64_t i = 0; i < 70; ++i) {
          for (std::int64_t h = 0; h < 2; ++h) rows[std::size_t((i * 2 + h) * 128 + i)] = 1;
        }
        in.grad_out = tensor_of(rows, in.queries(), dtype);
        const Outputs got = on_device(in);
        const auto out = got.out.to_vector<double>(), grad_v = got.grad_v.to_vector<double>();
        std::int64_t wrong = 0, num_kept = 0;
        for (std::int64_t h = 0; h < 2; ++h) {
          for (std::int64_t i = 0; i < 70; ++i) {
            for (std::int64_t j = 0; j < keys; ++j) {
              const bool is_kept = in.key.word(std::uint64_t(first + (h * 70 + i) * keys + j)) >= 0x80000000u;
              num_kept += is_kept;
              wrong += (out[std::size_t((i * 2 + h) * 128 + j)] != 0) != is_kept;
              wrong += (grad_v[std::size_t((j * 2 + h) * 128 + i)] != 0) != is_kept;
            }
          }
        }
        CHECK(wrong == 0);
        CHECK(num_kept > 0);
      }
    }
  }
}

TEST_CASE("cuda attention: any finite scale, negative and zero too") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    for (const double scale : {-0.25, 1e-30, 3.0}) {
      Case c{2, 1, 40, 70, 64, true, true};
      c.scale = scale;
      check(c, dtype);
    }
    Inputs in = make({1, 1, 20, 40, 32, true}, dtype);
    in.scale = 0;
    // Equal scores: a query's log-sum-exp is the logarithm of the number of keys that it sees.
    const auto lse = on_device(in).lse.to_vector<double>();
    for (std::size_t i = 0; i < lse.size(); ++i) CHECK(std::abs(lse[i] - std::log(double(i + 21))) <= 1e-6);
  }
}

TEST_CASE("cuda attention: hostile numbers") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
    const auto attend = [&](const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
      const Tensor out = poisoned(q.shape(), dtype, cuda_device());
      launch(AttentionForward{.q = on_cuda(q), .k = on_cuda(k), .v = on_cuda(v), .scale = scale, .out = out});
      return on_cpu(out).to_vector<double>();
    };
    const Shape one{1, 1, 1, 64}, eight{1, 8, 1, 64};
    // The sum of eight values at the end of f16's range is beyond it, their average is not.
    for (const double x : attend(zeros(one, dtype), zeros(eight, dtype), full(eight, 65504, dtype), 1)) CHECK(std::abs(x / 65504 - 1) <= 0x1p-8);
    // Scores of 3,686,400 before they are scaled.
    for (const double x : attend(full(one, 240, dtype), full(eight, 240, dtype), full(eight, 1, dtype), 0x1p-16)) CHECK(x == 1);
    // A key that is not a number reaches every output.
    const Tensor keys = zeros(eight, dtype);
    fill_values(view::slice(keys, 1, 3, 4), std::nan(""));
    for (const double x : attend(zeros(one, dtype), keys, full(eight, 1, dtype), 1)) CHECK(std::isnan(x));
  }
}

TEST_CASE("cuda attention: no samples, heads, queries or keys") {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    check({0, 2, 5, 5, 64}, dtype);
    check({2, 0, 5, 5, 64}, dtype);
    check({1, 1, 0, 5, 64}, dtype);
    check({1, 1, 5, 0, 64}, dtype);
  }
}

TEST_CASE("cuda attention: outputs without bytes are left out and change no bit of the others") {
  for (const DType dtype : {DType::bf16, DType::f32}) {
    const Inputs in = make({1, 2, 65, 66, 32, true, false, 0.25}, dtype);
    const Outputs all = on_device(in);
    const Tensor q = on_cuda(in.q), k = on_cuda(in.k), v = on_cuda(in.v), out = on_cuda(all.out), lse = on_cuda(all.lse);
    const Tensor nothing = without_bytes(in.queries(), dtype, cuda_device()), no_key = without_bytes(in.keys(), dtype, cuda_device());
    const Tensor only_out = poisoned(in.queries(), dtype, cuda_device()), only_lse = poisoned(in.sums(), DType::f32, cuda_device());
    launch(forward_of(in, q, k, v, {}, only_out, {}));
    launch(forward_of(in, q, k, v, {}, nothing, only_lse));
    CHECK(same_bits(on_cpu(only_out), all.out));
    CHECK(same_bits(on_cpu(only_lse), all.lse));
    const auto part = [&](const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v) {
      launch(AttentionBackward{.q = q,
                               .k = k,
                               .v = v,
                               .causal = true,
                               .scale = in.scale,
                               .dropout = in.c.dropout,
                               .key = in.key,
                               .first_element = in.c.first_element,
                               .attended = out,
                               .lse = lse,
                               .grad_out = on_cuda(in.grad_out),
                               .out = grad_q,
                               .grad_k = grad_k,
                               .grad_v = grad_v,
                               .scratch = poisoned({numel_of(in.sums())}, DType::f32, cuda_device())});
    };
    const Tensor grad_q = poisoned(in.queries(), dtype, cuda_device()), grad_k = poisoned(in.keys(), dtype, cuda_device());
    const Tensor grad_v = poisoned(in.keys(), dtype, cuda_device());
    part(grad_q, {}, {});
    part(nothing, grad_k, no_key);
    part(nothing, no_key, grad_v);
    CHECK(same_bits(on_cpu(grad_q), all.grad_q));
    CHECK(same_bits(on_cpu(grad_k), all.grad_k));
    CHECK(same_bits(on_cpu(grad_v), all.grad_v));
  }
}

TEST_CASE("cuda attention: a head's bits do not depend on the others, the layout or the run") {
  for (const DType dtype : {DType::f16, DType::f32}) {
    const Case c{2, 2, 66, 68, 64, true};
    const Inputs in = make(c, dtype);
    const Outputs all = on_device(in), again = on_device(in);
    Inputs packed = in;
    packed.c.layout = Layout::packed;
    Inputs odd = in;
    odd.c.layout = Layout::misaligned;
    const Outputs from_packed = on_device(packed), from_odd = on_device(odd);
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(same_bits(again.all()[i], all.all()[i]));
      CHECK(same_bits(from_packed.all()[i], all.all()[i]));
      CHECK(same_bits(from_odd.all()[i], all.all()[i]));
    }
    const auto sample = [](const Tensor& t) { return contiguous_values(view::slice(t, 0, 1, 2)); };
    Inputs one = in;
    one.c.batch = 1;
    one.q = sample(in.q), one.k = sample(in.k), one.v = sample(in.v), one.grad_out = sample(in.grad_out);
    const Outputs alone = on_device(one);
    for (std::size_t i = 0; i < 5; ++i) CHECK(same_bits(alone.all()[i], sample(all.all()[i])));
  }
}
