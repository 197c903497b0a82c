// Updates of 16-bit parameters against scalar code that rounds where the contract says, bit for bit.
#include <refrain/core/view.h>
#include <refrain/kernels/common/simd_random.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/kernels/update/stochastic_rounding.h>
#include <refrain/kernels/update/update.h>
#include <refrain/tests/support/values.h>

#include <map>

using namespace refrain;

namespace {

Tensor as(const Tensor& t, DType dtype) {
  const Tensor out = empty(t.shape(), dtype);
  launch(Convert{.x = t, .out = out});
  return out;
}

Tensor random_of(std::int64_t n, DType dtype, std::uint64_t seed, double low = -1, double high = 1) {
  return as(random_tensor({n}, DType::f32, seed, low, high), dtype);
}

constexpr RandomKey kKey{.seed = 11, .step = 5, .stage = 0xabcdef, .call = 6, .purpose = RandomPurpose::update};

RandomKey after(RandomKey key) {
  ++key.call;
  return key;
}

// The value as a tensor of this dtype keeps it.
float stored(float value, DType dtype, Rounding rounding, std::uint32_t random) {
  if (dtype == DType::f32) return value;
  const bool is_stochastic = rounding == Rounding::stochastic;
  if (dtype == DType::bf16) return float(is_stochastic ? simd::round_stochastic(bf16(), value, random) : bf16(value));
  return float(is_stochastic ? simd::round_stochastic(f16(), value, random) : f16(value));
}

struct Variant {
  DType dtype, grad, state;
  bool master;
  Rounding rounding;
};

std::vector<Variant> variants() {
  std::vector<Variant> all;
  for (DType dtype : {DType::f16, DType::bf16})
    for (DType grad : {dtype, DType::f32})
      for (DType state : {dtype, DType::f32})
        for (bool master : {false, true})
          for (Rounding rounding : {Rounding::nearest, Rounding::stochastic}) all.push_back({dtype, grad, state, master, rounding});
  return all;
}

struct Tensors {
  Tensor p, grad, first, second, master, num_lost = zeros({1}, DType::i64);
};

Tensors make(const Variant& v, std::int64_t n) {
  Tensors t;
  t.p = random_of(n, v.dtype, 1), t.grad = random_of(n, v.grad, 2), t.first = random_of(n, v.state, 3),
  t.second = random_of(n, v.state, 4, 0, 1);
  if (v.master) t.master = as(t.p, DType::f32);
  return t;
}

// What the elements of one update are to be: `update` changes p, m, s in f32 and returns whether that was no zero update.
template <class F>
void check_against(const Variant& v, const Tensors& t, std::int64_t first_element, bool has_second, const std::function<void()>& run,
                   F&& update) {
  auto p = (v.master ? t.master : t.p).to_vector<float>(), m = t.first.to_vector<float>(), s = t.second.to_vector<float>();
  const auto g = t.grad.to_vector<float>();
  std::vector<float> master = p;
  std::int64_t lost = 0;
  for (std::size_t i = 0; i < p.size(); ++i) {
    const float old = p[i];
    const bool is_update = update(p[i], m[i], s[i], g[i]);
    master[i] = p[i];
    const std::uint64_t element = std::uint64_t(first_element) + i;
    const std::uint32_t word = kKey.word(element), state_word = after(kKey).word(element);
    p[i] = stored(p[i], v.dtype, v.master ? Rounding::nearest : v.rounding, word & 0xffffu);
    m[i] = stored(m[i], v.state, v.rounding, state_word & 0xffffu);
    s[i] = stored(s[i], v.state, v.rounding, state_word >> 16);
    lost += is_update && (v.master ? master[i] : p[i]) == old;
  }
  run();
  CHECK(t.p.to_vector<float>() == p);
  CHECK(t.first.to_vector<float>() == m);
  if (has_second) CHECK(t.second.to_vector<float>() == s);
  if (v.master) CHECK(t.master.to_vector<float>() == master);
  CHECK(t.num_lost.item() == double(lost));
}

void adam(const Variant& v, const Tensors& t, std::int64_t begin, std::int64_t end, std::int64_t first_element, bool is_decoupled = true) {
  const auto part = [&](const Tensor& x) { return x.defined() ? view::slice(x, 0, begin, end) : x; };
  launch(AdamUpdate{.grad = part(t.grad), .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.05, .grad_scale = 0.3,
                    .is_decoupled = is_decoupled, .step = 3, .out = part(t.p), .mean = part(t.first), .square = part(t.second),
                    .master = part(t.master), .num_lost = t.num_lost, .rounding = {v.rounding, kKey, first_element}});
}

const std::vector<std::int64_t> kSizes{0, 1, 31, 32, 33, 1000, 17003};

}  // namespace

TEST_CASE("stochastic rounding: vectors give what single values give, for hostile values too") {
  std::vector<float> values{0.0f,       -0.0f,      1.0f,      65504.0f,    65519.9f,        65520.0f,        -65519.9f, 1e9f,
                            HUGE_VALF,  -HUGE_VALF, NAN,       -NAN,        0x1p-14f,        0x1.fffffep-15f, 0x1p-24f,  0x1p-25f,
                            0x1.8p-24f, 0x1p-41f,   0x1p-100f, 0x1.fep127f, 0x1.fefffep127f, 0x1.ffp127f,     3.4e38f,   -3.4e38f};
  const RandomKey key{.seed = 3, .purpose = RandomPurpose::user};
  for (std::uint64_t i = 0; i < 200000; ++i) {
    const float v = std::bit_cast<float>(key.word(i));
    if (std::fpclassify(v) != FP_SUBNORMAL) values.push_back(v);
  }
  for (std::uint64_t i = 0; i < 50000; ++i) values.push_back((key.uniform(i) - 0.5f) * 0x1p-12f);
  std::vector<std::uint32_t> words(values.size());
  simd::RandomWords(kKey).fill(0, words.data(), std::int64_t(words.size()));
  const auto check_type = [&](auto type) {
    using S = decltype(type);
    std::vector<S> low(values.size()), high(values.size());
    simd::round_stochastic<0>(values.data(), words.data(), low.data(), std::int64_t(values.size()));
    simd::round_stochastic<16>(values.data(), words.data(), high.data(), std::int64_t(values.size()));
    std::int64_t wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      wrong += low[i].bits != simd::round_stochastic(S(), values[i], words[i] & 0xffffu).bits;
      wrong += high[i].bits != simd::round_stochastic(S(), values[i], words[i] >> 16).bits;
    }
    CHECK(wrong == 0);
  };
  check_type(f16());
  check_type(bf16());
}

TEST_CASE("stochastic rounding: up with exactly the probability of the distance") {
  // All 2^16 random numbers: the count of those that go to the farther neighbour is the distance in 2^-16 of the spacing.
  const auto count = [](auto type, float value) {
    using S = decltype(type);
    std::map<float, int> seen;
    for (std::uint32_t random = 0; random < 0x10000u; ++random) ++seen[float(simd::round_stochastic(S(), value, random))];
    return seen;
  };
  using Seen = std::map<float, int>;
  CHECK(count(bf16(), 1.0f + 0x1p-9f) == Seen{{1.0f, 0xc000}, {1.0f + 0x1p-7f, 0x4000}});
  CHECK(count(bf16(), -(1.0f + 0x1p-23f)) == Seen{{-1.0f, 0xffff}, {-1.0f - 0x1p-7f, 1}});
  CHECK(count(bf16(), 2.0f - 0x1p-23f) == Seen{{2.0f - 0x1p-7f, 1}, {2.0f, 0xffff}});
  CHECK(count(f16(), 1.0f + 0x1p-12f) == Seen{{1.0f, 0xc000}, {1.0f + 0x1p-10f, 0x4000}});
  CHECK(count(f16(), -1.0f - 0x1p-23f) == Seen{{-1.0f, 0x10000 - 8}, {-1.0f - 0x1p-10f, 8}});
  CHECK(count(f16(), 0x1.4p-24f) == Seen{{0x1p-24f, 0xc000}, {0x1p-23f, 0x4000}});   // subnormal: 1.25 spacings
  CHECK(count(f16(), -0x1p-26f) == Seen{{-0.0f, 0xc000}, {-0x1p-24f, 0x4000}});      // a quarter of the least
  CHECK(count(f16(), 0x1p-40f) == Seen{{0.0f, 0xffff}, {0x1p-24f, 1}});
  CHECK(count(f16(), 0x1p-41f) == Seen{{0.0f, 0x10000}});
  CHECK(count(f16(), 0x1p-14f - 0x1p-26f) == Seen{{0x1p-14f - 0x1p-24f, 0x4000}, {0x1p-14f, 0xc000}});  // up to the normal ones
}

TEST_CASE("stochastic rounding: values of the format stay, finite ones never become infinite, infinity and NaN stay") {
  const auto check_type = [](auto type, float largest, float above, float overflow) {
    using S = decltype(type);
    std::int64_t moved = 0;
    for (std::uint32_t bits = 0; bits < 0x10000u; ++bits) {
      S s;
      s.bits = std::uint16_t(bits);
      const S nearest(float{s});  // a NaN is made quiet
      for (std::uint32_t random : {0u, 1u, 0x8000u, 0xffffu}) moved += simd::round_stochastic(S(), float(s), random).bits != nearest.bits;
    }
    CHECK(moved == 0);
    for (std::uint32_t random : {0u, 0x8000u, 0xffffu}) {
      CHECK(float(simd::round_stochastic(S(), above, random)) == largest);
      CHECK(float(simd::round_stochastic(S(), -above, random)) == -largest);
      CHECK(float(simd::round_stochastic(S(), overflow, random)) == HUGE_VALF);
    }
  };
  check_type(f16(), 65504.0f, 65519.99f, 65520.0f);
  check_type(bf16(), 0x1.fep127f, 0x1.fefffep127f, 0x1.ffp127f);
}

TEST_CASE("sgd_update: 16-bit parameters, every element rounds as the contract says") {
  const float lr = 0.01f, decay = 0.05f, scale = 0.7f;
  for (const Variant& v : variants()) {
    for (std::int64_t n : kSizes) {
      for (int kind : {0, 1, 2}) {  // plain, momentum, Nesterov
        const Tensors t = make(v, n);
        const float momentum = kind == 0 ? 0.0f : 0.9f;
        const auto run = [&] {
          launch(SgdUpdate{.grad = t.grad,
                           .lr = 0.01,
                           .weight_decay = 0.05,
                           .momentum = kind == 0 ? 0.0 : 0.9,
                           .grad_scale = 0.7,
                           .nesterov = kind == 2,
                           .out = t.p,
                           .momentum_buffer = kind == 0 ? Tensor() : t.first,
                           .master = t.master,
                           .num_lost = t.num_lost,
                           .rounding = {v.rounding, kKey, 5}});
        };
        check_against(v, t, 5, false, run, [&](float& p, float& m, float&, float grad) {
          float g = std::fma(decay, p, grad * scale);
          if (kind != 0) {
            m = std::fma(momentum, m, g);
            g = kind == 2 ? std::fma(momentum, m, g) : m;
          }
          p = std::fma(-lr, g, p);
          return -lr * g != 0;
        });
      }
    }
  }
}

TEST_CASE("adam_update: 16-bit parameters, every element rounds as the contract says") {
  const double correction1 = 1 - std::pow(0.9, 3.0), correction2 = 1 - std::pow(0.999, 3.0);
  const float decay = 0.05f, decoupled = float(1 - 1e-3 * 0.05), scale = 0.3f, minus_step = float(-1e-3 / correction1);
  for (const Variant& v : variants()) {
    for (std::int64_t n : kSizes) {
      for (bool is_decoupled : {false, true}) {
        const Tensors t = make(v, n);
        check_against(v, t, 3, true, [&] { adam(v, t, 0, n, 3, is_decoupled); }, [&](float& p, float& m, float& s, float grad) {
          const float old = p;
          float g = grad * scale;
          if (is_decoupled) p *= decoupled;
          else g = std::fma(decay, p, g);
          const bool decays = p != old;
          m = std::fma(0.9f, m, float(1 - 0.9) * g);
          s = std::fma(0.999f, s, float(1 - 0.999) * (g * g));
          const float ratio = m / std::fma(std::sqrt(s), float(1 / std::sqrt(correction2)), 1e-8f);
          p = std::fma(minus_step, ratio, p);
          return decays || minus_step * ratio != 0;
        });
      }
    }
  }
}

TEST_CASE("update kernels: any cut of a 16-bit parameter and any number of threads give the same bits") {
  const std::int64_t n = 50000;
  for (const Variant& v : variants()) {
    if (v.rounding == Rounding::nearest || v.grad == DType::f32) continue;
    const Tensors whole = make(v, n), parts = make(v, n);
    adam(v, whole, 0, n, 0);
    std::int64_t begin = 0;
    for (std::int64_t end : {17LL, 18LL, 33333LL, 50000LL}) adam(v, parts, begin, end, begin), begin = end;
    CHECK(same_bits(whole.p, parts.p));
    CHECK(same_bits(whole.first, parts.first));
    CHECK(same_bits(whole.second, parts.second));
    CHECK(whole.num_lost.item() == parts.num_lost.item());
    if (v.master) CHECK(same_bits(whole.master, parts.master));
    CHECK(same_on_all_threads([&] {
      const Tensors t = make(v, n);
      adam(v, t, 0, n, 0);
      return std::vector<Tensor>{t.p, t.first, t.second, t.num_lost};
    }));
  }
}

TEST_CASE("update kernels: what does not fit a 16-bit parameter is named") {
  const Tensor half = zeros({3}, DType::bf16), wide = zeros({3}, DType::f32), other = zeros({3}, DType::f16),
               count = zeros({1}, DType::i64);
  const auto message = [](const Tensor& grad, const Tensor& p, const Tensor& master, const Tensor& num_lost) {
    return message_of([&] {
      launch(SgdUpdate{.grad = grad,
                       .lr = 1,
                       .weight_decay = 0,
                       .momentum = 0,
                       .grad_scale = 1,
                       .nesterov = false,
                       .out = p,
                       .momentum_buffer = {},
                       .master = master,
                       .num_lost = num_lost});
    });
  };
  CHECK(message(half, half, {}, {}) == "");
  CHECK(message(wide, half, wide, count) == "");
  CHECK(message(other, half, {}, {}) == "sgd_update: grad must be bf16, got f16");
  CHECK(message(half, wide, {}, {}) == "sgd_update: grad must be f32, got bf16");
  CHECK(message(half, half, half, {}) == "sgd_update: master must be f32, got bf16");
  CHECK(message(wide, wide, wide, {}) == "sgd_update: a master copy belongs to a 16-bit parameter, got one for f32");
  CHECK(message(wide, wide, {}, count) == "sgd_update: lost updates are counted for 16-bit parameters, got f32");
  CHECK(message(half, half, {}, zeros({2}, DType::i64)) == "sgd_update: num_lost must have one element, got [2]");
}

TEST_CASE("update kernels: misaligned 16-bit tensors, nothing written outside") {
  for (const Variant& v : variants()) {
    for (std::int64_t n : {1, 7, 17, 33, 100, 513}) {
      const Tensors values = make(v, n);
      const Guarded p(values.p), grad(values.grad), first(values.first), second(values.second), master(as(values.p, DType::f32));
      Tensors t{p.tensor, grad.tensor, first.tensor, second.tensor, v.master ? master.tensor : Tensor()};
      adam(v, t, 0, n, 1);
      launch(ScaleInPlace{.factor = 2, .out = p.tensor});
      for (const Guarded* g : {&p, &grad, &first, &second, &master}) CHECK(g->is_intact());
    }
  }
}

TEST_CASE("scale: 16-bit values are rounded once") {
  for (DType dtype : {DType::f16, DType::bf16}) {
    const Tensor x = random_of(1003, dtype, 1);
    auto expected = x.to_vector<float>();
    for (float& v : expected) v = stored(v * 0.3f, dtype, Rounding::nearest, 0);
    launch(ScaleInPlace{.factor = 0.3, .out = x});
    CHECK(x.to_vector<float>() == expected);
  }
}
