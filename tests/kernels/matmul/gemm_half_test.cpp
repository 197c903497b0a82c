// 16-bit products against the same product in double on the same rounded inputs.
//
// Bounds. A sum of k exact products (16-bit factors have at most 11 bits each, so a product is exact in f32) takes at most
// k additions in f32, alpha, beta C and the bias two more, each rounded: with s the sum of the magnitudes of all terms the
// error before the result is stored is at most (k + 4) 2^-24 s (1 + tiny). Storing rounds once more, by u |y|: u is 2^-11
// for f16 (2^-25 absolute for its subnormals), 2^-8 for bf16, 2^-24 for f32. Kernels flush f32 subnormals, bf16's with
// them: 2^-126 for each term.
#include <refrain/kernels/matmul/gemm.h>
#include <refrain/tests/support/values.h>

#include <limits>

using namespace refrain;

namespace {

template <class S>
std::vector<GemmEngine> engines() {
  std::vector<GemmEngine> list{GemmEngine::builtin, GemmEngine::eigen, GemmEngine::automatic};
  if (has_onednn()) list.push_back(GemmEngine::onednn);
  if (std::is_same_v<S, bf16> && has_amx()) list.push_back(GemmEngine::amx);
  return list;
}

template <class T> constexpr double kUnit = std::is_same_v<T, f16> ? 0x1p-11 : std::is_same_v<T, bf16> ? 0x1p-8 : 0x1p-24;
template <class T> constexpr double kLeast = std::is_same_v<T, f16> ? 0x1p-25 : 0x1p-126;

template <class T>
std::vector<T> values(std::int64_t count, std::uint64_t seed, double scale = 1) {
  std::vector<T> out;
  for (double v : random_values(count, seed, -scale, scale)) out.push_back(T(float(v)));
  return out;
}

enum class Bias { none, narrow, wide };

template <class S, class C>
struct Problem {
  std::int64_t m, n, k;
  bool ta = false, tb = false;
  std::int64_t pad = 0;
  double scale = 1;
  std::vector<S> a = {}, b = {}, bias = {};
  std::vector<C> c = {};
  std::vector<float> wide_bias = {};

  std::int64_t lda() const { return std::max<std::int64_t>(1, (ta ? m : k) + pad); }
  std::int64_t ldb() const { return std::max<std::int64_t>(1, (tb ? k : n) + pad); }
  std::int64_t ldc() const { return n + pad; }
  void fill() {
    a = values<S>((ta ? k : m) * lda(), 1, scale);
    b = values<S>((tb ? n : k) * ldb(), 2, scale);
    c = values<C>(m * ldc(), 3);
    bias = values<S>(n, 4);
    wide_bias = values<float>(n, 5);
  }
  GemmArgs<S, C> args(GemmEngine engine) {
    return {.m = m, .n = n, .k = k, .a = {a.data(), lda(), ta}, .b = {b.data(), ldb(), tb}, .c = c.data(), .ldc = ldc(), .engine = engine};
  }
  double a_at(std::int64_t i, std::int64_t p) const { return double(float(a[std::size_t(ta ? p * lda() + i : i * lda() + p)])); }
  double b_at(std::int64_t p, std::int64_t j) const { return double(float(b[std::size_t(tb ? j * ldb() + p : p * ldb() + j)])); }
};

template <class S, class C>
void check_product(Problem<S, C> p, GemmEngine engine, float alpha, float beta, Bias with) {
  p.fill();
  const std::vector<C> before = p.c;
  GemmArgs<S, C> args = p.args(engine);
  args.alpha = alpha;
  args.beta = beta;
  if (with == Bias::narrow) args.bias = p.bias.data();
  if (with == Bias::wide) args.bias = p.wide_bias.data();
  gemm(args);
  double worst = 0;  // error in units of its bound
  bool is_padding_intact = true;
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.ldc(); ++j) {
      const std::size_t at = std::size_t(i * p.ldc() + j);
      if (j >= p.n) {
        is_padding_intact = is_padding_intact && float(p.c[at]) == float(before[at]);
        continue;
      }
      double sum = 0, magnitudes = 0;
      const auto add = [&](double term) {
        sum += term;
        magnitudes += std::abs(term);
      };
      for (std::int64_t q = 0; q < p.k; ++q) add(alpha * p.a_at(i, q) * p.b_at(q, j));
      if (beta != 0) add(beta * double(float(before[at])));
      if (with == Bias::narrow) add(double(float(p.bias[std::size_t(j)])));
      if (with == Bias::wide) add(double(p.wide_bias[std::size_t(j)]));
      const double f32_error = double(p.k + 4) * (0x1p-24 * magnitudes + 0x1p-126);
      const double bound = kUnit<C> * (std::abs(sum) + f32_error) + kLeast<C> + f32_error;
      const double error = std::abs(double(float(p.c[at])) - sum);
      worst = std::isnan(error) ? HUGE_VAL : std::max(worst, error / bound);
    }
  }
  INFO("m " << p.m << " n " << p.n << " k " << p.k << " ta " << p.ta << " tb " << p.tb << " engine " << int(engine) << " alpha " << alpha);
  CHECK(worst <= 1);
  CHECK(is_padding_intact);
}

template <class S, class C>
void check_all_products() {
  const std::vector<std::int64_t> sizes{0, 1, 15, 16, 17, 31, 32, 33, 64, 1000};
  for (GemmEngine engine : engines<S>()) {
    for (bool ta : {false, true}) {
      for (bool tb : {false, true}) {
        for (std::int64_t size : sizes) {
          check_product<S, C>({.m = size, .n = 33, .k = 17, .ta = ta, .tb = tb}, engine, 1, 0, Bias::none);
          check_product<S, C>({.m = 31, .n = size, .k = 33, .ta = ta, .tb = tb, .pad = 3}, engine, -0.5f, 2, Bias::narrow);
          check_product<S, C>({.m = 17, .n = 49, .k = size, .ta = ta, .tb = tb, .pad = 1}, engine, 1, 0, Bias::wide);
        }
        check_product<S, C>({.m = 217, .n = 400, .k = 70, .ta = ta, .tb = tb}, engine, 2, 1, Bias::none);
        check_product<S, C>({.m = 70, .n = 33, .k = 2500, .ta = ta, .tb = tb}, engine, 1, 0, Bias::narrow);
        check_product<S, C>({.m = 3, .n = 16, .k = 31, .ta = ta, .tb = tb}, engine, 0, 2, Bias::narrow);
      }
    }
    check_product<S, C>({.m = 2000, .n = 40, .k = 33}, engine, 1, 0, Bias::none);  // more rows than a tile's buffer holds
    check_product<S, C>({.m = 20, .n = 40, .k = 33, .scale = 0x1p-10}, engine, 1, 0, Bias::none);
    check_product<S, C>({.m = 20, .n = 40, .k = 33, .scale = 0x1p-62}, engine, 1, 0,
                        Bias::none);  // bf16: products near the least normal number
  }
}

// Rows computed alone, among others and at other places of a batch.
template <class S, class C>
void check_rows(GemmEngine engine, std::int64_t n, std::int64_t k, bool ta, bool tb) {
  Problem<S, C> all{.m = 600, .n = n, .k = k, .ta = ta, .tb = tb};
  all.fill();
  GemmArgs<S, C> args = all.args(engine);
  args.bias = all.wide_bias.data();
  args.activation = Activation::gelu_tanh;
  gemm(args);
  const std::vector<C> expected = all.c;
  for (std::int64_t m : {1, 2, 15, 16, 17, 24, 100, 192, 193, 300}) {
    for (std::int64_t first : {0, 7, 290}) {
      std::vector<C> c(std::size_t(m * n));
      GemmArgs<S, C> part = args;
      part.m = m;
      part.a.data += ta ? first : first * k;
      part.c = c.data();
      gemm(part);
      INFO("n " << n << " k " << k << " ta " << ta << " tb " << tb << " rows " << m << " from " << first << " engine " << int(engine));
      REQUIRE(std::memcmp(c.data(), expected.data() + first * n, c.size() * sizeof(C)) == 0);
    }
  }
}

template <class S, class C>
void check_all_rows() {
  for (GemmEngine engine : engines<S>()) {
    for (auto [n, k] : std::vector<std::array<std::int64_t, 2>>{{1, 1}, {2, 1000}, {10, 64}, {33, 31}, {64, 64}, {384, 385}, {400, 1600}}) {
      for (bool tb : {false, true}) check_rows<S, C>(engine, n, k, false, tb);
      check_rows<S, C>(engine, n, k, true, false);
    }
  }
}

template <class S, class C>
void check_split_k(GemmEngine engine) {
  for (auto [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{10, 33, 5000}, {17, 33, 1500}, {3, 5, 7}, {100, 40, 1100}}) {
    Problem<S, C> p{.m = m, .n = n, .k = k, .ta = true, .tb = false};
    p.fill();
    const std::vector<C> before = p.c;
    std::vector<C> sums(std::size_t(m), C(0.0f));
    std::vector<float> scratch(std::size_t(gemm_scratch_size(m, n, k, dtype_of<C>)));
    for (float beta : {0.0f, 1.0f}) {
      std::vector<std::vector<C>> results;
      const int threads = num_threads();
      for (int count : {1, 2, 4}) {
        set_num_threads(count);
        p.c = before;
        GemmArgs<S, C> args = p.args(engine);
        args.beta = beta;
        args.split_k = true;
        args.scratch = scratch.data();
        args.a_row_sums = sums.data();
        gemm(args);
        results.push_back(p.c);
        results.back().insert(results.back().end(), sums.begin(), sums.end());
      }
      set_num_threads(threads);
      INFO("m " << m << " n " << n << " k " << k << " engine " << int(engine) << " beta " << beta);
      for (const auto& r : results) CHECK(std::memcmp(r.data(), results[0].data(), r.size() * sizeof(C)) == 0);
      double worst = 0;
      const auto note = [&, terms = double(k + 8)](C got, double sum, double magnitudes) {
        const double f32_error = terms * 0x1p-24 * magnitudes;
        worst = std::max(worst, std::abs(double(float(got)) - sum) / (kUnit<C> * (std::abs(sum) + f32_error) + f32_error + kLeast<C>));
      };
      for (std::int64_t i = 0; i < m; ++i) {
        double row = 0, row_magnitudes = 0;
        for (std::int64_t q = 0; q < k; ++q) {
          row += p.a_at(i, q);
          row_magnitudes += std::abs(p.a_at(i, q));
        }
        note(sums[std::size_t(i)], row, row_magnitudes);
        for (std::int64_t j = 0; j < n; ++j) {
          const double start = beta * double(float(before[std::size_t(i * n + j)]));
          double sum = start, magnitudes = std::abs(start);
          for (std::int64_t q = 0; q < k; ++q) {
            const double term = p.a_at(i, q) * p.b_at(q, j);
            sum += term;
            magnitudes += std::abs(term);
          }
          note(p.c[std::size_t(i * n + j)], sum, magnitudes);
        }
      }
      CHECK(worst <= 1);
    }
  }
}

template <class S>
void check_threads() {
  for (GemmEngine engine : engines<S>()) {
    for (auto [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{1576, 384, 384}, {300, 1152, 65}, {17, 17, 17}, {900, 100, 1000}}) {
      INFO("m " << m << " n " << n << " k " << k << " engine " << int(engine));
      Problem<S, S> p{.m = m, .n = n, .k = k, .tb = true};
      p.fill();
      CHECK(same_on_all_threads([&] {
        gemm(p.args(engine));
        return std::vector<Tensor>{from_values(p.c, {p.m, p.n})};
      }));
    }
  }
}

}  // namespace

TEST_CASE("gemm: f16 products are f32 sums rounded once") { check_all_products<f16, f16>(); }
TEST_CASE("gemm: bf16 products are f32 sums rounded once") { check_all_products<bf16, bf16>(); }
TEST_CASE("gemm: f16 products into f32 keep the bits of f32 sums") { check_all_products<f16, float>(); }
TEST_CASE("gemm: bf16 products into f32 keep the bits of f32 sums") { check_all_products<bf16, float>(); }

TEST_CASE("gemm: a row's bits do not depend on how many rows there are, f16") { check_all_rows<f16, f16>(); }
TEST_CASE("gemm: a row's bits do not depend on how many rows there are, bf16") { check_all_rows<bf16, bf16>(); }
TEST_CASE("gemm: a row's bits do not depend on how many rows there are, bf16 into f32") { check_all_rows<bf16, float>(); }

TEST_CASE("gemm: 16-bit bits are equal on 1, 2 and 4 threads") {
  check_threads<f16>();
  check_threads<bf16>();
}

TEST_CASE("gemm: split_k of 16-bit products sums its pieces in f32 and rounds once") {
  for (GemmEngine engine : engines<bf16>()) {
    check_split_k<bf16, bf16>(engine);
    check_split_k<bf16, float>(engine);
  }
  for (GemmEngine engine : engines<f16>()) {
    check_split_k<f16, f16>(engine);
    check_split_k<f16, float>(engine);
  }
}

TEST_CASE("gemm: f16 sums far over 65,504 are no infinity where alpha or the rest of the sum brings them back") {
  for (GemmEngine engine : engines<f16>()) {
    const std::int64_t m = 20, n = 18, k = 64;
    std::vector<f16> a(std::size_t(m * k), f16(1000.0f)), b(std::size_t(k * n), f16(1000.0f)), c(std::size_t(m * n));
    GemmArgs<f16> args{
        .m = m, .n = n, .k = k, .a = {a.data(), k}, .b = {b.data(), n}, .c = c.data(), .ldc = n, .alpha = 0x1p-16f, .engine = engine};
    gemm(args);
    for (f16 v : c) CHECK(float(v) == float(f16(64e6f * 0x1p-16f)));
    for (std::size_t i = 0; i < b.size(); ++i) {
      if (i / std::size_t(n) >= 32) b[i] = f16(i / std::size_t(n) == 63 ? -999.0f : -1000.0f);
    }
    args.alpha = 1;
    gemm(args);
    for (f16 v : c) CHECK(float(v) == 1000);
    args.alpha = 70;
    gemm(args);
    for (f16 v : c) CHECK(std::isinf(float(v)));
  }
}

TEST_CASE("gemm: a 16-bit activation has the bits of the same activation of the stored value before it") {
  for (Activation activation : {Activation::relu, Activation::gelu_erf, Activation::gelu_tanh}) {
    Problem<bf16, bf16> p{.m = 50, .n = 37, .k = 31, .scale = 2};
    p.fill();
    std::vector<bf16> plain(p.c.size()), pre(p.c.size()), alone(p.c.size());
    GemmArgs<bf16> args = p.args(GemmEngine::automatic);
    args.bias = p.wide_bias.data();
    args.c = plain.data();
    gemm(args);
    args.activation = activation;
    args.c = alone.data();
    gemm(args);
    args.c = p.c.data();
    args.pre_activation = pre.data();
    gemm(args);
    CHECK(std::memcmp(pre.data(), plain.data(), pre.size() * sizeof(bf16)) == 0);
    CHECK(std::memcmp(p.c.data(), alone.data(), pre.size() * sizeof(bf16)) == 0);
    for (std::size_t i = 0; i < pre.size(); ++i) {
      const double x = double(float(pre[i]));
      double y = std::max(0.0, x);
      if (activation == Activation::gelu_erf) y = x * 0.5 * std::erfc(-x / std::sqrt(2.0));
      if (activation == Activation::gelu_tanh) y = 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
      CHECK(float(p.c[i]) == Approx(y).epsilon(0x1p-8 + 1e-5).margin(1e-6));
    }
  }
}

TEST_CASE("gemm: NaN and infinity of 16-bit operands stay in their own row and reach the output") {
  const bf16 nan(std::numeric_limits<float>::quiet_NaN()), inf(std::numeric_limits<float>::infinity());
  for (GemmEngine engine : engines<bf16>()) {
    Problem<bf16, bf16> p{.m = 30, .n = 18, .k = 40};
    p.fill();
    std::fill(p.b.begin(), p.b.end(), bf16(1.0f));
    std::fill(p.c.begin(), p.c.end(), nan);  // beta 0 does not read it
    p.a[std::size_t(3 * p.k + 39)] = nan;
    p.a[std::size_t(29 * p.k)] = inf;
    gemm(p.args(engine));
    for (std::int64_t i = 0; i < p.m; ++i) {
      for (std::int64_t j = 0; j < p.n; ++j) {
        const float v = float(p.c[std::size_t(i * p.n + j)]);
        if (i == 3) CHECK(std::isnan(v));
        else if (i == 29) CHECK(v == float(inf));
        else CHECK(std::isfinite(v));
      }
    }
  }
}

TEST_CASE("gemm: AMX is for bf16 and only where the processor has it") {
  Problem<f16, f16> p{.m = 4, .n = 5, .k = 6};
  p.fill();
  CHECK_THROWS_AS(gemm(p.args(GemmEngine::amx)), InvalidArgument);
  Problem<bf16, bf16> q{.m = 4, .n = 5, .k = 6};
  q.fill();
  if (has_amx()) CHECK_NOTHROW(gemm(q.args(GemmEngine::amx)));
  else CHECK_THROWS_AS(gemm(q.args(GemmEngine::amx)), InvalidArgument);
}
