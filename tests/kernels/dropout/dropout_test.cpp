#include <refrain/core/view.h>
#include <refrain/kernels/dropout/dropout.h>
#include <refrain/tests/support/values.h>

#include <limits>

using namespace refrain;

namespace {

const RandomKey kKey{.seed = 42, .step = 3, .stage = 5, .call = 1};

Tensor dropped(const Tensor& x, double p, std::int64_t first = 0, const Tensor& residual = {}) {
  const Tensor out = full(x.shape(), -77, x.dtype());
  launch(Dropout{.x = x, .residual = residual, .p = p, .key = kKey, .first_element = first, .out = out});
  return out;
}

}  // namespace

TEST_CASE("dropout: every element follows its own word of the stream, from any first element") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (std::int64_t n : {0, 1, 31, 32, 33, 63, 65, 1000, 40001}) {
      for (std::int64_t first : {std::int64_t{0}, std::int64_t{4}, std::int64_t{7}, std::int64_t{1} << 40}) {
        const Tensor x = random_tensor({n}, dtype, 1), residual = random_tensor({n}, dtype, 2);
        const std::vector<double> v = x.to_vector<double>(), r = residual.to_vector<double>();
        std::vector<double> expected(v.size()), with_residual(v.size());
        for (std::size_t i = 0; i < v.size(); ++i) {
          const bool keep = kKey.word(std::uint64_t(first) + i) >= drop_threshold(0.3);
          const double kept = dtype == DType::f64 ? v[i] * (1 / (1 - 0.3)) : double(float(v[i]) * float(1 / (1 - 0.3)));
          expected[i] = keep ? kept : 0;
          with_residual[i] = dtype == DType::f64 ? r[i] + expected[i] : double(float(r[i]) + float(expected[i]));
        }
        CHECK(dropped(x, 0.3, first).to_vector<double>() == expected);
        CHECK(dropped(x, 0.3, first, residual).to_vector<double>() == with_residual);
      }
    }
  }
}

TEST_CASE("dropout: p = 0 keeps everything and p = 1 nothing, not even infinities") {
  const Tensor x = random_tensor({100}, DType::f32, 1);
  CHECK(same_bits(dropped(x, 0), x));
  x.data<float>()[3] = std::numeric_limits<float>::infinity();
  x.data<float>()[4] = std::numeric_limits<float>::quiet_NaN();
  CHECK(dropped(x, 1).to_vector<double>() == std::vector<double>(100, 0.0));
  const Tensor residual = random_tensor({100}, DType::f32, 2);
  CHECK(same_bits(dropped(x, 1, 0, residual), residual));
  for (double p : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) CHECK_THROWS_AS(dropped(x, p), InvalidArgument);
}

TEST_CASE("dropout: the share of zeros is p and the mean stays") {
  const Tensor x = full({1 << 18}, 1, DType::f32);
  for (double p : {0.1, 0.5, 0.9}) {
    std::int64_t num_zero = 0;
    double sum = 0;
    for (float v : dropped(x, p).to_vector<float>()) num_zero += v == 0, sum += v;
    const double count = 1 << 18, deviation = std::sqrt(p * (1 - p) / count);
    CHECK(std::abs(double(num_zero) / count - p) < 5 * deviation);
    CHECK(std::abs(sum / count - 1) < 5 * deviation / (1 - p));
  }
}

TEST_CASE("dropout: parts of a batch and thread counts give the whole's bits") {
  const Tensor x = random_tensor({64, 33}, DType::f32, 5), whole = dropped(x, 0.2);
  for (std::int64_t sample : {0, 1, 17, 63}) {
    CHECK(same_bits(dropped(view::slice(x, 0, sample, sample + 1), 0.2, sample * 33), view::slice(whole, 0, sample, sample + 1)));
  }
  const Tensor big = random_tensor({100003}, DType::f32, 6);
  CHECK(same_on_all_threads([&] { return std::vector<Tensor>{dropped(big, 0.5, 3), dropped(big, 0.5)}; }));
}

TEST_CASE("stochastic_depth: whole samples are dropped by their index in the global batch") {
  for (std::int64_t offset : {0, 5}) {
    for (double p : {0.0, 0.4, 1.0}) {
      const Tensor x = random_tensor({50, 3, 7}, DType::f32, 3), out = full({50, 3, 7}, -77, DType::f32);
      launch(StochasticDepth{.x = x, .p = p, .key = kKey, .first_sample = offset, .out = out});
      const std::vector<float> v = x.to_vector<float>(), y = out.to_vector<float>();
      bool is_right = true;
      for (std::size_t i = 0; i < v.size(); ++i) {
        const bool keep = p < 1 && kKey.word(std::uint64_t(offset) + i / 21) >= drop_threshold(p);
        is_right = is_right && y[i] == (keep ? v[i] * float(1 / (1 - p)) : 0.0f);
      }
      CHECK(is_right);
    }
  }
  CHECK_THROWS_AS(
      launch(StochasticDepth{.x = zeros({}, DType::f32), .p = 0.5, .key = kKey, .first_sample = 0, .out = zeros({}, DType::f32)}),
      InvalidArgument);
}
