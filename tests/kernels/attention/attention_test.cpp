// Attention against the plain formula in double, and the promises about bits.
#include <refrain/core/view.h>
#include <refrain/kernels/attention/attention.h>
#include <refrain/tests/support/values.h>

#include <cmath>
#include <limits>
#include <vector>

using namespace refrain;

namespace {

struct Case {
  std::int64_t batch, heads, queries, keys, width;
  bool causal = false, masked = false;
  double dropout = 0, magnitude = 1;
};

struct Problem {
  Case c;
  DType dtype;
  Tensor q, k, v, mask, grad_out, out, lse, grad_q, grad_k, grad_v;
  double scale;
  RandomKey key{.seed = 7, .step = 3, .stage = 2, .call = 1};
  std::int64_t first_element = 24;
};

// A view into a wider tensor: rows of one head lie far apart, and what surrounds them must stay untouched.
Tensor strided_heads(const Case& c, std::int64_t length, DType dtype, int third) {
  const Tensor packed = full({c.batch, length, 3, c.heads, c.width}, 777, dtype);
  return view::select(packed, 2, third);
}

void fill_random(const Tensor& t, std::uint64_t seed, double magnitude) {
  const RandomKey key{.seed = seed, .purpose = RandomPurpose::user};
  const Tensor values = empty(t.shape(), t.dtype());
  for (std::int64_t i = 0; i < t.numel(); ++i) {
    const double value = magnitude * (2.0 * double(key.uniform(std::uint64_t(i))) - 1);
    if (t.dtype() == DType::f64)
      values.data<double>()[i] = value;
    else
      values.data<float>()[i] = float(value);
  }
  copy_values(t, values);
}

Problem make(const Case& c, DType dtype) {
  Problem p{c,
            dtype,
            strided_heads(c, c.queries, dtype, 0),
            strided_heads(c, c.keys, dtype, 1),
            strided_heads(c, c.keys, dtype, 2),
            {},
            {},
            {},
            {},
            {},
            {},
            {},
            0};
  fill_random(p.q, 1, c.magnitude);
  fill_random(p.k, 2, c.magnitude);
  fill_random(p.v, 3, 1);
  p.grad_out = empty({c.batch, c.queries, c.heads, c.width}, dtype);
  fill_random(p.grad_out, 4, 1);
  if (c.masked) {
    // Sample 0 attends to no key at all, the others to a scattered part.
    std::vector<std::uint8_t> bytes;
    for (std::int64_t b = 0; b < c.batch; ++b) {
      for (std::int64_t j = 0; j < c.keys; ++j) bytes.push_back(b == 0 ? 0 : std::uint8_t((j * 5 + b) % 3 != 0 ? 1 + j % 2 : 0));
    }
    p.mask = from_values(bytes, {c.batch, c.keys});
  }
  p.out = full({c.batch, c.queries, c.heads, c.width}, 99, dtype);
  p.lse = full({c.batch, c.heads, c.queries}, 99, dtype);
  p.grad_q = strided_heads(c, c.queries, dtype, 0);
  p.grad_k = strided_heads(c, c.keys, dtype, 1);
  p.grad_v = strided_heads(c, c.keys, dtype, 2);
  p.scale = default_attention_scale(c.width);
  return p;
}

void forward(const Problem& p) {
  launch(AttentionForward{.q = p.q,
                          .k = p.k,
                          .v = p.v,
                          .key_mask = p.mask,
                          .causal = p.c.causal,
                          .scale = p.scale,
                          .dropout = p.c.dropout,
                          .key = p.key,
                          .first_element = p.first_element,
                          .out = p.out,
                          .lse = p.lse});
}

void backward(const Problem& p) {
  launch(AttentionBackward{.q = p.q,
                           .k = p.k,
                           .v = p.v,
                           .key_mask = p.mask,
                           .causal = p.c.causal,
                           .scale = p.scale,
                           .dropout = p.c.dropout,
                           .key = p.key,
                           .first_element = p.first_element,
                           .attended = p.out,
                           .lse = p.lse,
                           .grad_out = p.grad_out,
                           .out = p.grad_q,
                           .grad_k = p.grad_k,
                           .grad_v = p.grad_v});
}

struct Reference {
  std::vector<double> out, lse, grad_q, grad_k, grad_v;
};

Reference reference(const Problem& p) {
  const Case& c = p.c;
  const auto q = p.q.to_vector<double>(), k = p.k.to_vector<double>(), v = p.v.to_vector<double>(), g = p.grad_out.to_vector<double>();
  const auto mask = p.mask ? p.mask.to_vector<double>() : std::vector<double>(std::size_t(c.batch * c.keys), 1);
  Reference r{std::vector<double>(q.size()), std::vector<double>(std::size_t(c.batch * c.heads * c.queries)), std::vector<double>(q.size()),
              std::vector<double>(k.size()), std::vector<double>(k.size())};
  const std::uint32_t threshold = std::uint32_t(c.dropout * 4294967296.0);
  for (std::int64_t b = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const auto at = [&](std::int64_t length, std::int64_t i) { return std::size_t(((b * length + i) * c.heads + h) * c.width); };
      for (std::int64_t i = 0; i < c.queries; ++i) {
        std::vector<double> s(std::size_t(c.keys), 0), keep(s), dp(s);
        double top = -std::numeric_limits<double>::infinity(), total = 0, delta = 0;
        const std::int64_t row = (b * c.heads + h) * c.queries + i;
        for (std::int64_t j = 0; j < c.keys; ++j) {
          for (std::int64_t d = 0; d < c.width; ++d)
            s[std::size_t(j)] += p.scale * q[at(c.queries, i) + std::size_t(d)] * k[at(c.keys, j) + std::size_t(d)];
          const bool hidden = mask[std::size_t(b * c.keys + j)] == 0 || (c.causal && j > i + c.keys - c.queries);
          if (hidden) s[std::size_t(j)] = -std::numeric_limits<double>::infinity();
          top = std::max(top, s[std::size_t(j)]);
          keep[std::size_t(j)] = p.key.word(std::uint64_t(p.first_element + row * c.keys + j)) >= threshold ? 1 / (1 - c.dropout) : 0;
        }
        r.lse[std::size_t(row)] = top;
        if (std::isinf(top)) continue;
        for (double& x : s) total += x = std::exp(x - top);
        r.lse[std::size_t(row)] += std::log(total);
        for (std::int64_t j = 0; j < c.keys; ++j) {
          s[std::size_t(j)] /= total;
          for (std::int64_t d = 0; d < c.width; ++d) {
            const double weight = s[std::size_t(j)] * keep[std::size_t(j)], grad = g[at(c.queries, i) + std::size_t(d)],
                         value = v[at(c.keys, j) + std::size_t(d)];
            r.out[at(c.queries, i) + std::size_t(d)] += weight * value;
            r.grad_v[at(c.keys, j) + std::size_t(d)] += weight * grad;
            dp[std::size_t(j)] += grad * value * keep[std::size_t(j)];
          }
          delta += s[std::size_t(j)] * dp[std::size_t(j)];
        }
        for (std::int64_t j = 0; j < c.keys; ++j) {
          const double ds = s[std::size_t(j)] * (dp[std::size_t(j)] - delta) * p.scale;
          for (std::int64_t d = 0; d < c.width; ++d) {
            r.grad_q[at(c.queries, i) + std::size_t(d)] += ds * k[at(c.keys, j) + std::size_t(d)];
            r.grad_k[at(c.keys, j) + std::size_t(d)] += ds * q[at(c.queries, i) + std::size_t(d)];
          }
        }
      }
    }
  }
  return r;
}

double largest_difference(const Tensor& got, const std::vector<double>& expected) {
  const auto values = got.to_vector<double>();
  REQUIRE(values.size() == expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] == expected[i]) continue;  // infinities too
    const double difference = std::abs(values[i] - expected[i]) / (1 + std::abs(expected[i]));
    worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : std::max(worst, difference);
  }
  return worst;
}

const std::vector<Case> kCases = {
    {1, 1, 1, 1, 1},
    {2, 3, 17, 17, 5},
    {1, 2, 31, 33, 16},
    {2, 1, 50, 50, 16, true},
    {2, 2, 197, 197, 64},
    {1, 4, 64, 129, 32, true},
    {1, 1, 129, 64, 20, true},  // the first 65 queries see nothing
    {3, 2, 70, 65, 24, false, true},
    {2, 2, 65, 260, 7, true, true},
    {2, 3, 40, 40, 16, false, false, 0.3},
    {2, 2, 66, 131, 33, true, true, 0.5},
    {1, 5, 1, 300, 48},
    {1, 4, 3, 1000, 256, false, false, 0.1},
    {2, 2, 33, 33, 16, false, false, 0, 30},  // scores up to some thousands
};

}  // namespace

TEST_CASE("attention: values and gradients are those of the plain formula") {
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      CAPTURE(c.batch, c.heads, c.queries, c.keys, c.width, c.causal, c.masked, c.dropout, c.magnitude, name_of(dtype));
      const Problem p = make(c, dtype);
      forward(p);
      backward(p);
      const Reference r = reference(p);
      // f32 keeps the log-sum-exp to 2^-24 of its size, which is the relative error of a probability made from it.
      const double limit = dtype == DType::f64 ? 1e-11 : c.magnitude > 1 ? 4e-3 : 4e-6;
      CHECK(largest_difference(p.out, r.out) < limit);
      CHECK(largest_difference(p.lse, r.lse) < limit);
      CHECK(largest_difference(p.grad_q, r.grad_q) < limit);
      CHECK(largest_difference(p.grad_k, r.grad_k) < limit);
      CHECK(largest_difference(p.grad_v, r.grad_v) < limit);
    }
  }
}

TEST_CASE("attention: a query that may attend to no key gives zeros and no gradient") {
  const Problem p = make({2, 2, 40, 30, 16, false, true}, DType::f32);
  forward(p);
  backward(p);
  for (const Tensor& t : {p.out, p.grad_q, p.grad_k, p.grad_v}) {
    for (const float x : view::select(t, 0, 0).to_vector<float>()) CHECK(x == 0);
  }
  for (const float x : view::select(p.lse, 0, 0).to_vector<float>()) CHECK(x == -std::numeric_limits<float>::infinity());
}

TEST_CASE("attention: huge scores neither overflow nor lose the largest") {
  Problem p = make({1, 1, 2, 3, 2}, DType::f32);
  copy_values(p.q, from_values<float>({1e18f, 0, 0, -1e18f}, {1, 2, 1, 2}));
  copy_values(p.k, from_values<float>({1e18f, 1, -1e18f, 2, 5, -1e18f}, {1, 3, 1, 2}));
  copy_values(p.v, from_values<float>({1, 2, 3, 4, 5, 6}, {1, 3, 1, 2}));
  forward(p);
  CHECK(p.out.to_vector<float>() == std::vector<float>{1, 2, 5, 6});
}

TEST_CASE("attention: a score that is not a number reaches the output") {
  const Problem p = make({1, 1, 5, 40, 8}, DType::f32);
  fill_values(view::slice(p.k, 1, 3, 4), std::numeric_limits<double>::quiet_NaN());
  forward(p);
  for (const float x : p.out.to_vector<float>()) CHECK(std::isnan(x));
}

TEST_CASE("attention: memory between strided rows stays untouched") {
  const Problem p = make({2, 2, 70, 70, 20}, DType::f32);
  forward(p);
  backward(p);
  const Shape packed = {2, 70, 3, 2, 20};
  for (const Tensor& t : {p.grad_q, p.grad_k, p.grad_v}) {
    const Tensor whole(t.storage(), t.device(), t.dtype(), packed, contiguous_strides(packed), 0);
    std::int64_t untouched = 0;
    for (const float x : whole.to_vector<float>()) untouched += x == 777;
    CHECK(untouched == whole.numel() / 3 * 2);
  }
}

TEST_CASE("attention: bits do not depend on the number of threads") {
  const int before = num_threads();
  for (const Case& c : {Case{3, 4, 197, 197, 64, false, true, 0.2}, Case{1, 1, 300, 300, 32, true}, Case{40, 4, 50, 50, 16}}) {
    set_num_threads(1);
    const Problem one = make(c, DType::f32);
    forward(one);
    backward(one);
    for (const int threads : {2, 4}) {
      set_num_threads(threads);
      const Problem many = make(c, DType::f32);
      forward(many);
      backward(many);
      CHECK(same_bits(one.out, many.out));
      CHECK(same_bits(one.lse, many.lse));
      CHECK(same_bits(one.grad_q, many.grad_q));
      CHECK(same_bits(one.grad_k, many.grad_k));
      CHECK(same_bits(one.grad_v, many.grad_v));
    }
  }
  set_num_threads(before);
}

TEST_CASE("attention: a sample's bits do not depend on the batch around it") {
  // Five samples of one head each are done a head a piece, one alone is cut further.
  const Problem all = make({5, 1, 150, 150, 24, true, false, 0.25}, DType::f32);
  forward(all);
  backward(all);
  for (std::int64_t b = 0; b < 5; ++b) {
    Problem one = make({1, 1, 150, 150, 24, true, false, 0.25}, DType::f32);
    const auto sample = [&](const Tensor& t) { return view::slice(t, 0, b, b + 1); };
    copy_values(one.q, sample(all.q));
    copy_values(one.k, sample(all.k));
    copy_values(one.v, sample(all.v));
    copy_values(one.grad_out, sample(all.grad_out));
    one.first_element += b * 150 * 150;
    forward(one);
    backward(one);
    CHECK(same_bits(one.out, sample(all.out)));
    CHECK(same_bits(one.grad_q, sample(all.grad_q)));
    CHECK(same_bits(one.grad_k, sample(all.grad_k)));
    CHECK(same_bits(one.grad_v, sample(all.grad_v)));
  }
}

TEST_CASE("attention: what nobody wants is left out and the rest keeps its bits") {
  const Problem p = make({2, 2, 70, 70, 16, true}, DType::f32);
  forward(p);
  backward(p);
  const auto part = [&](const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v) {
    launch(AttentionBackward{.q = p.q,
                             .k = p.k,
                             .v = p.v,
                             .causal = true,
                             .scale = p.scale,
                             .attended = p.out,
                             .lse = p.lse,
                             .grad_out = p.grad_out,
                             .out = grad_q,
                             .grad_k = grad_k,
                             .grad_v = grad_v});
  };
  const Tensor nothing = without_bytes(p.q.shape(), DType::f32, Device::cpu());
  const Tensor q = empty(p.q.shape(), DType::f32), k = empty(p.k.shape(), DType::f32), v = empty(p.v.shape(), DType::f32);
  part(q, {}, {});
  part(nothing, k, {});
  part(nothing, {}, v);
  CHECK(same_bits(q, p.grad_q));
  CHECK(same_bits(k, p.grad_k));
  CHECK(same_bits(v, p.grad_v));

  const Tensor out = empty(p.out.shape(), DType::f32), lse = empty(p.lse.shape(), DType::f32);
  launch(AttentionForward{.q = p.q, .k = p.k, .v = p.v, .causal = true, .scale = p.scale, .out = out});
  launch(AttentionForward{.q = p.q, .k = p.k, .v = p.v, .causal = true, .scale = p.scale, .out = nothing, .lse = lse});
  CHECK(same_bits(out, p.out));
  CHECK(same_bits(lse, p.lse));
}

TEST_CASE("attention: empty batches and empty key sequences are legal") {
  const Problem none = make({0, 2, 4, 4, 8}, DType::f32);
  forward(none);
  backward(none);
  const Problem p = make({1, 1, 3, 0, 8}, DType::f32);
  forward(p);
  backward(p);
  for (const float x : p.out.to_vector<float>()) CHECK(x == 0);
  for (const float x : p.grad_q.to_vector<float>()) CHECK(x == 0);
}

TEST_CASE("attention: wrong shapes, dtypes and numbers are refused") {
  const Problem p = make({2, 2, 8, 8, 16}, DType::f32);
  const auto attend = [&](const Tensor& q, const Tensor& k, const Tensor& mask, double dropout, double scale) {
    launch(AttentionForward{.q = q, .k = k, .v = p.v, .key_mask = mask, .scale = scale, .dropout = dropout, .out = p.out, .lse = p.lse});
  };
  attend(p.q, p.k, {}, 0, 1);
  CHECK_THROWS_AS(attend(view::slice(p.q, 3, 0, 8), p.k, {}, 0, 1), InvalidArgument);
  CHECK_THROWS_AS(attend(p.q, view::slice(p.k, 1, 0, 7), {}, 0, 1), InvalidArgument);
  CHECK_THROWS_AS(attend(view::transpose(p.q, 2, 3), p.k, {}, 0, 1), InvalidArgument);
  CHECK_THROWS_AS(attend(p.q, empty(p.k.shape(), DType::f64), {}, 0, 1), InvalidArgument);
  CHECK_THROWS_AS(attend(p.q, p.k, full({2, 7}, 1, DType::boolean), 0, 1), InvalidArgument);
  CHECK_THROWS_AS(attend(p.q, p.k, full({2, 8}, 1, DType::f32), 0, 1), InvalidArgument);
  CHECK_THROWS_AS(attend(p.q, p.k, {}, 1, 1), InvalidArgument);
  CHECK_THROWS_AS(attend(p.q, p.k, {}, -0.1, 1), InvalidArgument);
  CHECK_THROWS_AS(attend(p.q, p.k, {}, 0, std::numeric_limits<double>::infinity()), InvalidArgument);
  const Tensor wide = full({1, 2, 1, 257}, 1, DType::f32);
  CHECK_THROWS_AS(launch(AttentionForward{.q = wide, .k = wide, .v = wide, .scale = 1, .out = wide}), InvalidArgument);
}

TEST_CASE("attention: cost counts the pairs that are attended to") {
  const Problem p = make({2, 3, 10, 10, 4}, DType::f32);
  const auto flops = [&](bool causal) {
    return cost(AttentionForward{.q = p.q, .k = p.k, .v = p.v, .causal = causal, .scale = 1, .out = p.out}).flops;
  };
  CHECK(flops(false) == 4.0 * 4 * 6 * 100);
  CHECK(flops(true) == 4.0 * 4 * 6 * 55);
}
