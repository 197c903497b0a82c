// Attention of 16-bit tensors: the f32 kernel's arithmetic with one rounding at the end, hostile ranges and the promises
// about bits. How near the results are to f64 is tests/autograd/ops/precision_bounds_test.cpp's.
#include <refrain/core/view.h>
#include <refrain/kernels/attention/attention.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Case {
  std::int64_t batch, heads, queries, keys, width;
  bool causal = false, masked = false;
  double dropout = 0;
};

const std::vector<Case> kCases = {
    {1, 1, 1, 1, 1},
    {2, 3, 17, 17, 5},
    {1, 2, 31, 33, 16},
    {2, 2, 197, 197, 64},
    {1, 4, 64, 129, 32, true},
    {1, 1, 129, 64, 20, true},  // the first 65 queries see nothing
    {3, 2, 70, 65, 24, false, true},
    {2, 3, 40, 40, 16, false, false, 0.3},
    {2, 2, 66, 131, 33, true, true, 0.5},
    {2, 2, 300, 3, 256},  // more than fit into the sums on the stack
    {1, 4, 3, 1000, 256, false, false, 0.1},
};

struct Problem {
  Tensor q, k, v, mask, grad_out, out, lse, grad_q, grad_k, grad_v;
};

Tensor as(const Tensor& t, DType dtype) { return tensor_of(t.to_vector<double>(), t.shape(), dtype); }

Problem make(const Case& c, DType dtype) {
  const Shape queries{c.batch, c.queries, c.heads, c.width}, keys{c.batch, c.keys, c.heads, c.width};
  Problem p{random_tensor(queries, dtype, 1),
            random_tensor(keys, dtype, 2),
            random_tensor(keys, dtype, 3),
            {},
            random_tensor(queries, dtype, 4),
            empty(queries, dtype),
            empty({c.batch, c.heads, c.queries}, DType::f32),
            empty(queries, dtype),
            empty(keys, dtype),
            empty(keys, dtype)};
  if (c.masked) {
    std::vector<std::uint8_t> bytes;
    for (std::int64_t i = 0; i < c.batch * c.keys; ++i) bytes.push_back(i < c.keys ? 0 : std::uint8_t(i % 3 != 0));
    p.mask = from_values(bytes, {c.batch, c.keys});
  }
  return p;
}

double scale_of(const Problem& p) { return default_attention_scale(p.q.dim(3)); }

void forward(const Case& c, const Problem& p) {
  launch(AttentionForward{.q = p.q,
                          .k = p.k,
                          .v = p.v,
                          .key_mask = p.mask,
                          .causal = c.causal,
                          .scale = scale_of(p),
                          .dropout = c.dropout,
                          .key = {.seed = 7},
                          .out = p.out,
                          .lse = p.lse});
}

void backward(const Case& c, const Problem& p) {
  launch(AttentionBackward{.q = p.q,
                           .k = p.k,
                           .v = p.v,
                           .key_mask = p.mask,
                           .causal = c.causal,
                           .scale = scale_of(p),
                           .dropout = c.dropout,
                           .key = {.seed = 7},
                           .attended = p.out,
                           .lse = p.lse,
                           .grad_out = p.grad_out,
                           .out = p.grad_q,
                           .grad_k = p.grad_k,
                           .grad_v = p.grad_v});
}

std::vector<Tensor> results(const Problem& p) { return {p.out, p.lse, p.grad_q, p.grad_k, p.grad_v}; }

std::vector<double> attend(const Tensor& q, const Tensor& k, const Tensor& v, double scale, const Tensor& mask = {}) {
  const Tensor out = empty(q.shape(), q.dtype());
  launch(AttentionForward{.q = q, .k = k, .v = v, .key_mask = mask, .scale = scale, .out = out});
  return out.to_vector<double>();
}

}  // namespace

TEST_CASE("attention: 16-bit results are those of f32, rounded once") {
  for (const Case& c : kCases) {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      CAPTURE(c.batch, c.heads, c.queries, c.keys, c.width, c.causal, c.masked, c.dropout, name_of(dtype));
      const Problem half = make(c, dtype);
      forward(c, half);
      backward(c, half);
      // f32 on the same values; its backward reads the same, rounded output.
      Problem wide = make(c, DType::f32);
      for (const auto& [to, from] : {std::pair{wide.q, half.q}, {wide.k, half.k}, {wide.v, half.v}, {wide.grad_out, half.grad_out}})
        copy_values(to, as(from, DType::f32));
      forward(c, wide);
      CHECK(same_bits(half.out, as(wide.out, dtype)));
      CHECK(same_bits(half.lse, wide.lse));
      copy_values(wide.out, as(half.out, DType::f32));
      backward(c, wide);
      CHECK(same_bits(half.grad_q, as(wide.grad_q, dtype)));
      CHECK(same_bits(half.grad_k, as(wide.grad_k, dtype)));
      CHECK(same_bits(half.grad_v, as(wide.grad_v, dtype)));
    }
  }
}

TEST_CASE("attention: scores beyond 65,504 before scaling do no harm in f16") {
  // q·k = 64 · 240² = 3,686,400 for the first key and 32,768 less for the second; scaled by 2^-16 they differ by 1/2.
  const Shape one{1, 1, 1, 64}, two{1, 2, 1, 64};
  std::vector<double> keys(128, 240);
  for (std::size_t i = 64; i < 128; ++i) keys[i] = 240 - 512.0 / 240;
  const Tensor q = full(one, 240, DType::f16), k = tensor_of(keys, two, DType::f16);
  std::vector<double> values(128, 0);
  for (std::size_t i = 0; i < 64; ++i) values[i] = 1;
  const double difference = 64 * 240 * (k.to_vector<double>()[0] - k.to_vector<double>()[64]) * 0x1p-16;
  const double expected = 1 / (1 + std::exp(-difference));
  for (const double y : attend(q, k, tensor_of(values, two, DType::f16), 0x1p-16))
    CHECK(std::abs(y - expected) <= expected * 0x1p-11 + 0x1p-20);
}

TEST_CASE("attention: values at the end of f16's range are averaged without overflow") {
  // Eight keys of equal weight: their sum, 524,032, is beyond f16, the average is not.
  const Shape one{1, 1, 1, 4}, eight{1, 8, 1, 4};
  for (const double y : attend(zeros(one, DType::f16), zeros(eight, DType::f16), full(eight, 65504, DType::f16), 1)) CHECK(y == 65504);
}

TEST_CASE("attention: masked 16-bit scores weigh nothing, and a query without keys gives zeros and zero gradients") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    // Scores 1, 2, 3; the third is masked. v is the unit matrix, so the output is the softmax.
    const Tensor q = tensor_of({1, 0, 0}, {1, 1, 1, 3}, dtype), k = tensor_of({1, 0, 0, 2, 0, 0, 3, 0, 0}, {1, 3, 1, 3}, dtype);
    const Tensor v = tensor_of({1, 0, 0, 0, 1, 0, 0, 0, 1}, {1, 3, 1, 3}, dtype);
    const double unit = dtype == DType::f16 ? 0x1p-11 : 0x1p-8;
    const auto out = attend(q, k, v, 1, from_values(std::vector<std::uint8_t>{1, 1, 0}, {1, 3}));
    CHECK(std::abs(out[0] - 0.26894142) <= 0.26894142 * unit + 1e-7);
    CHECK(std::abs(out[1] - 0.73105858) <= 0.73105858 * unit + 1e-7);
    CHECK(out[2] == 0);
    CHECK(attend(q, k, v, 1, from_values(std::vector<std::uint8_t>{0, 0, 0}, {1, 3})) == std::vector<double>{0, 0, 0});

    const Case c{2, 2, 40, 30, 16, false, true};
    const Problem p = make(c, dtype);
    forward(c, p);
    backward(c, p);
    for (const Tensor& t : {p.out, p.grad_q, p.grad_k, p.grad_v}) {
      for (const double x : view::select(t, 0, 0).to_vector<double>()) CHECK(x == 0);
    }
    for (const double x : view::select(p.lse, 0, 0).to_vector<double>()) CHECK(x == -kInfinity);
  }
}

TEST_CASE("attention: a 16-bit score that is not a number reaches the output") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Problem p = make({1, 1, 5, 40, 8}, dtype);
    fill_values(view::slice(p.k, 1, 3, 4), std::nan(""));
    for (const double x : attend(p.q, p.k, p.v, 1)) CHECK(std::isnan(x));
  }
}

TEST_CASE("attention: 16-bit gradients are sums in f32") {
  // Every query has the same gradient 1 and weighs each of 4 keys by 1/4: 4,096 of them sum to 1,024, but would stop at
  // 64 in bf16 and at 512 in f16.
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Case c{4, 1, 4096, 4, 8};
    Problem p = make(c, dtype);
    fill_values(p.q, 0);
    fill_values(p.grad_out, 1);
    forward(c, p);
    backward(c, p);
    for (const double g : p.grad_v.to_vector<double>()) CHECK(g == 1024);
  }
}

TEST_CASE("attention: 16-bit results do not depend on threads, the batch or what else is wanted") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const Case& c : {Case{3, 4, 197, 197, 64, false, true, 0.2}, Case{1, 1, 300, 300, 32, true}, Case{4, 1, 260, 150, 256}}) {
      CHECK(same_on_all_threads([&] {
        const Problem p = make(c, dtype);
        forward(c, p);
        backward(c, p);
        return results(p);
      }));
    }
    // Four heads are done a head a piece with all sums on the stack, one alone in halves.
    const Case four{4, 1, 150, 150, 24, true}, one{1, 1, 150, 150, 24, true};
    const Problem all = make(four, dtype);
    forward(four, all);
    backward(four, all);
    for (std::int64_t b = 0; b < 4; ++b) {
      Problem p = make(one, dtype);
      const auto sample = [&](const Tensor& t) { return view::slice(t, 0, b, b + 1); };
      for (const auto& [to, from] : {std::pair{p.q, all.q}, {p.k, all.k}, {p.v, all.v}, {p.grad_out, all.grad_out}})
        copy_values(to, sample(from));
      forward(one, p);
      backward(one, p);
      for (std::size_t i = 0; i < 5; ++i) CHECK(same_bits(results(p)[i], sample(results(all)[i])));
    }
    const auto part = [&](const Tensor& grad_q, const Tensor& grad_k, const Tensor& grad_v) {
      launch(AttentionBackward{.q = all.q,
                               .k = all.k,
                               .v = all.v,
                               .causal = true,
                               .scale = scale_of(all),
                               .attended = all.out,
                               .lse = all.lse,
                               .grad_out = all.grad_out,
                               .out = grad_q,
                               .grad_k = grad_k,
                               .grad_v = grad_v});
    };
    const Tensor nothing = without_bytes(all.q.shape(), dtype, Device::cpu());
    const Tensor q = empty(all.q.shape(), dtype), k = empty(all.k.shape(), dtype), v = empty(all.v.shape(), dtype);
    part(q, {}, {});
    part(nothing, k, {});
    part(nothing, {}, v);
    CHECK(same_bits(q, all.grad_q));
    CHECK(same_bits(k, all.grad_k));
    CHECK(same_bits(v, all.grad_v));
  }
}

TEST_CASE("attention: memory between strided 16-bit rows stays untouched") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Case c{2, 2, 70, 70, 20};
    const Problem plain = make(c, dtype);
    forward(c, plain);
    backward(c, plain);
    Problem p = plain;
    const Shape packed{2, 70, 3, 2, 20};
    const Tensor inputs = full(packed, 77, dtype), grads = full(packed, 77, dtype);
    const auto third = [](const Tensor& t, int i) { return view::select(t, 2, i); };
    copy_values(third(inputs, 0), plain.q);
    copy_values(third(inputs, 1), plain.k);
    copy_values(third(inputs, 2), plain.v);
    p.q = third(inputs, 0), p.k = third(inputs, 1), p.v = third(inputs, 2);
    p.grad_q = third(grads, 0), p.grad_k = third(grads, 1), p.grad_v = third(grads, 2);
    p.out = empty(plain.out.shape(), dtype);
    p.lse = empty(plain.lse.shape(), DType::f32);
    forward(c, p);
    backward(c, p);
    for (std::size_t i = 0; i < 5; ++i) CHECK(same_bits(results(p)[i], results(plain)[i]));
  }
}
