#include <refrain/kernels/matmul/gemm.h>
#include <refrain/tests/support/values.h>

#include <limits>

using namespace refrain;

namespace {

std::vector<GemmEngine> engines_for(DType dtype) {
  if (dtype == DType::f32 && has_onednn()) return {GemmEngine::builtin, GemmEngine::eigen, GemmEngine::onednn};
  return {GemmEngine::builtin, GemmEngine::eigen};
}

// One product with everything a test may vary; values are a pure function of the seed.
template <class T>
struct Problem {
  std::int64_t m, n, k;
  bool ta = false, tb = false;
  std::int64_t pad = 0;  // leading dimensions are this much longer than needed
  std::vector<T> a = {}, b = {}, c = {}, bias = {};

  void fill() {
    auto values = [](std::int64_t count, std::uint64_t seed) {
      const std::vector<double> v = random_values(count, seed);
      return std::vector<T>(v.begin(), v.end());
    };
    a = values((ta ? k : m) * lda(), 1);
    b = values((tb ? n : k) * ldb(), 2);
    c = values(m * ldc(), 3);
    bias = values(n, 4);
  }
  std::int64_t lda() const { return std::max<std::int64_t>(1, (ta ? m : k) + pad); }
  std::int64_t ldb() const { return std::max<std::int64_t>(1, (tb ? k : n) + pad); }
  std::int64_t ldc() const { return n + pad; }
  GemmArgs<T> args(GemmEngine engine) {
    return {.m = m, .n = n, .k = k, .a = {a.data(), lda(), ta}, .b = {b.data(), ldb(), tb}, .c = c.data(), .ldc = ldc(), .engine = engine};
  }
  double a_at(std::int64_t i, std::int64_t p) const { return double(ta ? a[std::size_t(p * lda() + i)] : a[std::size_t(i * lda() + p)]); }
  double b_at(std::int64_t p, std::int64_t j) const { return double(tb ? b[std::size_t(j * ldb() + p)] : b[std::size_t(p * ldb() + j)]); }
};

template <class T>
double tolerance(std::int64_t k) {
  return double(std::numeric_limits<T>::epsilon()) * (8 + 2 * std::sqrt(double(k)));
}

// alpha op(A) op(B) + beta C + bias against a plain loop in double; padding of C untouched.
template <class T>
void check_product(Problem<T> p, GemmEngine engine, double alpha, double beta, bool with_bias) {
  p.fill();
  const std::vector<T> before = p.c;
  GemmArgs<T> args = p.args(engine);
  args.alpha = T(alpha);
  args.beta = T(beta);
  if (with_bias) args.bias = p.bias.data();
  gemm(args);
  double worst = 0;
  bool is_padding_intact = true;
  for (std::int64_t i = 0; i < p.m; ++i) {
    for (std::int64_t j = 0; j < p.ldc(); ++j) {
      const std::size_t at = std::size_t(i * p.ldc() + j);
      if (j >= p.n) {
        is_padding_intact = is_padding_intact && p.c[at] == before[at];
        continue;
      }
      double sum = 0;
      for (std::int64_t q = 0; q < p.k; ++q) sum += p.a_at(i, q) * p.b_at(q, j);
      sum = alpha * sum + beta * double(before[at]) + (with_bias ? double(p.bias[std::size_t(j)]) : 0.0);
      worst = std::max(worst, std::abs(double(p.c[at]) - sum) / std::max(1.0, std::abs(sum)));
    }
  }
  INFO("m " << p.m << " n " << p.n << " k " << p.k << " ta " << p.ta << " tb " << p.tb << " engine " << int(engine) << " alpha " << alpha);
  CHECK(worst <= tolerance<T>(p.k) * std::max(1.0, std::abs(alpha)));
  CHECK(is_padding_intact);
}

template <class T>
void check_all_products() {
  for (GemmEngine engine : engines_for(dtype_of<T>)) {
    for (bool ta : {false, true}) {
      for (bool tb : {false, true}) {
        for (auto [m, n, k] : std::vector<std::array<std::int64_t, 3>>{{1, 1, 1},
                                                                       {1, 31, 7},
                                                                       {23, 1, 5},
                                                                       {24, 33, 32},
                                                                       {25, 16, 0},
                                                                       {47, 2, 31},
                                                                       {191, 10, 3},
                                                                       {193, 385, 33},
                                                                       {217, 400, 20},
                                                                       {3, 1000, 1},
                                                                       {0, 3, 3},
                                                                       {3, 0, 3}}) {
          check_product<T>({.m = m, .n = n, .k = k, .ta = ta, .tb = tb}, engine, 1, 0, false);
          check_product<T>({.m = m, .n = n, .k = k, .ta = ta, .tb = tb, .pad = 5}, engine, -0.5, 2, true);
        }
      }
    }
    check_product<T>({.m = 5, .n = 9, .k = 9000}, engine, 1, 1, false);  // deeper than one step of k
    check_product<T>({.m = 30, .n = 9, .k = 4100, .ta = true}, engine, 2, 0, true);
  }
}

// Rows computed alone, among others and at other places of a batch.
template <class T>
void check_rows_are_independent(GemmEngine engine, std::int64_t n, std::int64_t k, bool ta, bool tb) {
  const std::int64_t total = 600;
  Problem<T> all{.m = total, .n = n, .k = k, .ta = ta, .tb = tb};
  all.fill();
  GemmArgs<T> args = all.args(engine);
  args.bias = all.bias.data();
  args.activation = Activation::gelu_erf;
  gemm(args);
  const std::vector<T> expected = all.c;
  for (std::int64_t m : {1, 2, 5, 23, 24, 25, 100, 191, 192, 193, 300}) {
    for (std::int64_t first : {0, 7, 290}) {
      std::vector<T> c(std::size_t(m * n));
      GemmArgs<T> part = args;
      part.m = m;
      part.a.data += ta ? first : first * k;
      part.c = c.data();
      gemm(part);
      INFO("n " << n << " k " << k << " ta " << ta << " tb " << tb << " rows " << m << " from " << first << " engine " << int(engine));
      REQUIRE(std::memcmp(c.data(), expected.data() + first * n, c.size() * sizeof(T)) == 0);
    }
  }
}

template <class T>
void check_all_rows() {
  for (GemmEngine engine : engines_for(dtype_of<T>)) {
    for (auto [n, k] : std::vector<std::array<std::int64_t, 2>>{{1, 1},
                                                                {1, 65},
                                                                {2, 1000},
                                                                {10, 64},
                                                                {16, 17},
                                                                {33, 31},
                                                                {64, 64},
                                                                {100, 192},
                                                                {128, 1000},
                                                                {384, 385},
                                                                {385, 384},
                                                                {400, 1600},
                                                                {24, 5000}}) {
      for (bool tb : {false, true}) check_rows_are_independent<T>(engine, n, k, false, tb);
      check_rows_are_independent<T>(engine, n, k, true, false);
    }
  }
}

}  // namespace

TEST_CASE("gemm: equals a plain loop for all transposes, odd sizes, alpha and beta, f32") { check_all_products<float>(); }
TEST_CASE("gemm: equals a plain loop for all transposes, odd sizes, alpha and beta, f64") { check_all_products<double>(); }

TEST_CASE("gemm: a row's bits do not depend on how many rows there are, f32") { check_all_rows<float>(); }
TEST_CASE("gemm: a row's bits do not depend on how many rows there are, f64") { check_all_rows<double>(); }

TEST_CASE("gemm: bits are equal on 1, 2 and 4 threads") {
  for (GemmEngine engine : engines_for(DType::f32)) {
    for (auto [m, n, k, split] : std::vector<std::array<std::int64_t, 4>>{{1576, 384, 384, 0},
                                                                          {300, 1152, 65, 0},
                                                                          {64, 64, 6400, 1},
                                                                          {192, 64, 1088, 1},
                                                                          {10, 64, 5000, 1},
                                                                          {384, 384, 1576, 1},
                                                                          {17, 17, 17, 0}}) {
      INFO("m " << m << " n " << n << " k " << k << " engine " << int(engine));
      CHECK(same_on_all_threads([&, m = m, n = n, k = k, split = split] {
        const Tensor a = random_tensor({k, m}, DType::f32, 1), b = random_tensor({k, n}, DType::f32, 2), c = empty({m, n}, DType::f32);
        const Tensor sums = zeros({m}, DType::f32), scratch = empty({gemm_scratch_size(m, n, k, DType::f32)}, DType::f32);
        gemm(GemmArgs<float>{.m = m,
                             .n = n,
                             .k = k,
                             .a = {a.data<float>(), m, true},
                             .b = {b.data<float>(), n},
                             .c = c.data<float>(),
                             .ldc = n,
                             .a_row_sums = split ? sums.data<float>() : nullptr,
                             .split_k = split != 0,
                             .scratch = scratch.data<float>(),
                             .engine = engine});
        return std::vector<Tensor>{c, sums};
      }));
    }
  }
}

TEST_CASE("gemm: split_k adds its pieces up to the same product and row sums") {
  for (GemmEngine engine : engines_for(DType::f32)) {
    const std::int64_t m = 40, n = 30, k = 4321;
    CHECK(gemm_scratch_size(m, n, k, DType::f32) > 0);
    const Tensor a = random_tensor({k, m}, DType::f32, 1), b = random_tensor({k, n}, DType::f32, 2), c = full({m, n}, 2, DType::f32);
    const Tensor sums = empty({m}, DType::f32), scratch = empty({gemm_scratch_size(m, n, k, DType::f32)}, DType::f32);
    gemm(GemmArgs<float>{.m = m, .n = n, .k = k, .a = {a.data<float>(), m, true}, .b = {b.data<float>(), n}, .c = c.data<float>(), .ldc = n,
                         .beta = 3, .a_row_sums = sums.data<float>(), .split_k = true, .scratch = scratch.data<float>(), .engine = engine});
    std::vector<double> product(std::size_t(m * n), 6), row_sums(std::size_t(m), 0);
    for (std::int64_t p = 0; p < k; ++p) {
      for (std::int64_t i = 0; i < m; ++i) {
        const double v = double(a.data<float>()[p * m + i]);
        row_sums[std::size_t(i)] += v;
        for (std::int64_t j = 0; j < n; ++j) product[std::size_t(i * n + j)] += v * double(b.data<float>()[p * n + j]);
      }
    }
    CHECK(error_against(c, product) < 1e-5);
    CHECK(error_against(sums, row_sums) < 1e-5);
  }
}

TEST_CASE("gemm: beta 0 does not read C, alpha 0 reads neither A nor B") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (GemmEngine engine : engines_for(DType::f32)) {
    for (std::int64_t m : {1, 24, 50}) {
      Problem<float> p{.m = m, .n = 20, .k = 30};
      p.fill();
      std::fill(p.c.begin(), p.c.end(), nan);
      gemm(p.args(engine));
      CHECK(std::none_of(p.c.begin(), p.c.end(), [](float v) { return std::isnan(v); }));
      std::fill(p.a.begin(), p.a.end(), nan);
      GemmArgs<float> args = p.args(engine);
      args.alpha = 0;
      args.beta = 2;
      const std::vector<float> before = p.c;
      gemm(args);
      for (std::size_t i = 0; i < before.size(); ++i) CHECK(p.c[i] == 2 * before[i]);
    }
  }
}

TEST_CASE("gemm: NaN and infinity stay in their own row and reach the output") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (GemmEngine engine : engines_for(DType::f32)) {
    for (Activation activation : {Activation::none, Activation::relu, Activation::gelu_erf, Activation::gelu_tanh}) {
      Problem<float> p{.m = 30, .n = 18, .k = 40};
      p.fill();
      std::fill(p.b.begin(), p.b.end(), 1.0f);
      p.a[std::size_t(3 * p.k + 39)] = nan;
      p.a[std::size_t(29 * p.k)] = inf;
      GemmArgs<float> args = p.args(engine);
      args.activation = activation;
      gemm(args);
      for (std::int64_t i = 0; i < p.m; ++i) {
        for (std::int64_t j = 0; j < p.n; ++j) {
          const float v = p.c[std::size_t(i * p.n + j)];
          if (i == 3) CHECK(std::isnan(v));
          else if (i == 29) CHECK(v == inf);
          else CHECK(std::isfinite(v));
        }
      }
    }
  }
}

TEST_CASE("gemm: epilogues apply bias, then the activation, and hand out the value before it") {
  Problem<double> p{.m = 50, .n = 37, .k = 11, .pad = 3};
  for (Activation activation : {Activation::none, Activation::relu, Activation::gelu_erf, Activation::gelu_tanh}) {
    p.fill();
    std::vector<double> pre(p.c.size(), -7);
    GemmArgs<double> args = p.args(GemmEngine::automatic);
    args.bias = p.bias.data();
    args.activation = activation;
    args.pre_activation = pre.data();
    gemm(args);
    for (std::int64_t i = 0; i < p.m; ++i) {
      for (std::int64_t j = 0; j < p.n; ++j) {
        double x = p.bias[std::size_t(j)];
        for (std::int64_t q = 0; q < p.k; ++q) x += p.a_at(i, q) * p.b_at(q, j);
        double y = x;
        if (activation == Activation::relu) y = std::max(0.0, x);
        if (activation == Activation::gelu_erf) y = x * 0.5 * std::erfc(-x / std::sqrt(2.0));
        if (activation == Activation::gelu_tanh) y = 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
        CHECK(pre[std::size_t(i * p.ldc() + j)] == Approx(x).epsilon(1e-12).margin(1e-13));
        CHECK(p.c[std::size_t(i * p.ldc() + j)] == Approx(y).epsilon(1e-12).margin(1e-13));
      }
    }
  }
}

TEST_CASE("gemm: refuses leading dimensions that are too short and engines it does not have") {
  Problem<double> p{.m = 4, .n = 5, .k = 6};
  p.fill();
  GemmArgs<double> args = p.args(GemmEngine::automatic);
  args.a.ld = 5;
  CHECK_THROWS_AS(gemm(args), InvalidArgument);
  args = p.args(GemmEngine::automatic);
  args.ldc = 4;
  CHECK_THROWS_AS(gemm(args), InvalidArgument);
  args = p.args(GemmEngine::onednn);
  CHECK_THROWS_AS(gemm(args), InvalidArgument);
}
