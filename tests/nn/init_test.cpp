#include <refrain/nn/init.h>

#include <refrain/core/parallel.h>
#include <refrain/tests/support/catch.h>

#include <algorithm>
#include <cmath>
#include <numeric>

using namespace refrain;

namespace {

constexpr RandomKey kKey{.seed = 7, .purpose = RandomPurpose::init};

std::vector<double> draw(const Init& init, const Shape& shape, DType dtype = DType::f64) {
  const Tensor t = empty(shape, dtype);
  init.fill(t, kKey);
  return t.to_vector<double>();
}

double mean_of(const std::vector<double>& x) { return std::accumulate(x.begin(), x.end(), 0.0) / double(x.size()); }

double std_of(const std::vector<double>& x) {
  const double mean = mean_of(x);
  double sum = 0;
  for (const double v : x) sum += (v - mean) * (v - mean);
  return std::sqrt(sum / double(x.size()));
}

double largest(const std::vector<double>& x) {
  double max = 0;
  for (const double v : x) max = std::max(max, std::abs(v));
  return max;
}

// Largest distance between the sample's distribution function and f.
template <class F>
double kolmogorov_distance(std::vector<double> x, F&& f) {
  std::sort(x.begin(), x.end());
  double distance = 0;
  for (std::size_t i = 0; i < x.size(); ++i) distance = std::max(distance, std::abs(f(x[i]) - (double(i) + 0.5) / double(x.size())));
  return distance;
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }

}  // namespace

// 200,000 values: the 0.1 % critical value of the Kolmogorov-Smirnov distance is 1.95 / sqrt(200,000).
constexpr double kDistance = 0.0044;

TEST_CASE("init: normal follows the normal distribution", "[init]") {
  const auto x = draw(Init::normal(3, 0.5), {1000, 200});
  CHECK(kolmogorov_distance(x, [](double v) { return normal_cdf((v - 3) / 0.5); }) < kDistance);
}

TEST_CASE("init: uniform fills its interval and never leaves it", "[init]") {
  const auto x = draw(Init::uniform(-2, 1), {1000, 200});
  CHECK(kolmogorov_distance(x, [](double v) { return (v + 2) / 3; }) < kDistance);
  CHECK(*std::min_element(x.begin(), x.end()) >= -2);
  CHECK(*std::max_element(x.begin(), x.end()) < 1);
}

TEST_CASE("init: trunc_normal is the normal distribution between its bounds", "[init]") {
  const auto x = draw(Init::trunc_normal(0.5, 2, -1, 3), {1000, 200});
  const double low = normal_cdf(-0.75), high = normal_cdf(1.25);
  CHECK(kolmogorov_distance(x, [&](double v) { return (normal_cdf((v - 0.5) / 2) - low) / (high - low); }) < kDistance);
  CHECK(*std::min_element(x.begin(), x.end()) >= -1);
  CHECK(*std::max_element(x.begin(), x.end()) <= 3);
}

TEST_CASE("init: the normal quantile inverts the distribution function to the last digits", "[init]") {
  for (const double p : {1e-12, 1e-5, 0.01, 0.07, 0.075, 0.2, 0.5, 0.8, 0.925, 0.93, 0.9999}) {
    CHECK(normal_cdf(normal_quantile(p)) == Approx(p).epsilon(1e-12));
  }
  CHECK(normal_quantile(0.975) == Approx(1.959963984540054).epsilon(1e-15));
  CHECK_THROWS_AS(normal_quantile(0), InvalidArgument);
}

TEST_CASE("init: xavier and kaiming have the variance of their papers and PyTorch's bounds", "[init]") {
  const Shape shape{300, 500};  // fan_in 500, fan_out 300
  CHECK(std_of(draw(Init::xavier_normal(), shape)) == Approx(std::sqrt(2.0 / 800)).epsilon(0.01));
  CHECK(largest(draw(Init::xavier_uniform(2), shape)) == Approx(2 * std::sqrt(6.0 / 800)).epsilon(1e-3));
  CHECK(std_of(draw(Init::kaiming_normal(), shape)) == Approx(std::sqrt(2.0 / 500)).epsilon(0.01));
  CHECK(largest(draw(Init::kaiming_uniform(std::sqrt(5.0)), shape)) == Approx(1 / std::sqrt(500.0)).epsilon(1e-3));
  const Fans fans = fans_of({64, 3, 7, 7});
  CHECK(fans.in == 3 * 49);
  CHECK(fans.out == 64 * 49);
  CHECK_THROWS_AS(fans_of({5}), InvalidArgument);
}

TEST_CASE("init: an element depends on its index only, not on size, shape or threads", "[init]") {
  const Init init = Init::normal(0, 1);
  const auto long_one = draw(init, {70001}), short_one = draw(init, {7}), matrix = draw(init, {10, 10});
  CHECK(std::equal(short_one.begin(), short_one.end(), long_one.begin()));
  CHECK(std::equal(matrix.begin(), matrix.end(), long_one.begin()));
  const int threads = num_threads();
  for (const int count : {1, 3}) {
    set_num_threads(count);
    CHECK(draw(init, {70001}) == long_one);
  }
  set_num_threads(threads);
}

TEST_CASE("init: every floating dtype gets the same values, rounded", "[init]") {
  const auto exact = draw(Init::normal(0, 1), {1001});
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto x = draw(Init::normal(0, 1), {1001}, dtype);
    const double eps = dtype == DType::f32 ? 6e-8 : dtype == DType::f16 ? 5e-4 : 4e-3;
    for (std::size_t i = 0; i < x.size(); ++i) CHECK(std::abs(x[i] - exact[i]) <= eps * std::max(std::abs(exact[i]), 1e-2));
  }
}

TEST_CASE("init: impossible distributions are refused", "[init]") {
  const Tensor t = empty({4, 4}, DType::f32);
  CHECK_THROWS_AS(Init::normal(0, -1).fill(t, kKey), InvalidArgument);
  CHECK_THROWS_AS(Init::uniform(1, 0).fill(t, kKey), InvalidArgument);
  CHECK_THROWS_AS(Init::trunc_normal(0, 1, 2, -2).fill(t, kKey), InvalidArgument);
  CHECK_THROWS_AS(Init::trunc_normal(0, 1, 40, 50).fill(t, kKey), InvalidArgument);
  CHECK_THROWS_AS(Init::zeros().fill(empty({2}, DType::i64), kKey), InvalidArgument);
}
