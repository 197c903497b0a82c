// Batch norm against a plain loop in double.
#include <refrain/kernels/norm/norm.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

constexpr double kEps = 1e-5;

struct Run {
  Tensor x, weight, bias, mean, rstd, out;
};

Run run_training(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean = {},
                 const Tensor& running_var = {}) {
  const Shape channels{x.dim(1)};
  Run r{x, weight, bias, empty(channels, x.dtype()), empty(channels, x.dtype()), empty(x.shape(), x.dtype())};
  launch(BatchNormStatistics{
      .x = x, .eps = kEps, .momentum = 0.1, .out = r.mean, .rstd = r.rstd, .running_mean = running_mean, .running_var = running_var});
  launch(BatchNormApply{.x = x, .mean = r.mean, .rstd = r.rstd, .weight = weight, .bias = bias, .out = r.out});
  return r;
}

std::vector<Tensor> run_backward(const Run& r, const Tensor& grad_out, bool batch_statistics) {
  const Tensor grad_x = empty(r.x.shape(), r.x.dtype()), grad_weight = empty(r.mean.shape(), r.x.dtype()),
               grad_bias = empty(r.mean.shape(), r.x.dtype());
  launch(BatchNormBackward{.grad_out = grad_out,
                           .x = r.x,
                           .mean = r.mean,
                           .rstd = r.rstd,
                           .weight = r.weight,
                           .batch_statistics = batch_statistics,
                           .out = grad_x,
                           .grad_weight = grad_weight,
                           .grad_bias = grad_bias});
  return {grad_x, grad_weight, grad_bias};
}

// The values of a channel, and how to put them back.
struct Channels {
  std::size_t samples, channels, run;
  explicit Channels(const Shape& shape)
      : samples(std::size_t(shape[0])), channels(std::size_t(shape[1])), run(std::size_t(numel_of(shape) / shape[0] / shape[1])) {}
  std::vector<std::size_t> indices(std::size_t channel) const {
    std::vector<std::size_t> result;
    for (std::size_t n = 0; n < samples; ++n) {
      for (std::size_t s = 0; s < run; ++s) result.push_back((n * channels + channel) * run + s);
    }
    return result;
  }
};

}  // namespace

TEST_CASE("batch_norm: forward, running statistics and backward match a loop in double") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const double tolerance = dtype == DType::f64 ? 1e-12 : 1e-5;
    for (const Shape& shape : {Shape{4, 3, 5, 7}, Shape{2, 1, 1, 1}, Shape{1, 5, 31}, Shape{33, 40}, Shape{64, 2, 28, 28}}) {
      const Tensor x = random_tensor(shape, dtype, 1, -1, 3), grad_out = random_tensor(shape, dtype, 2);
      const Tensor weight = random_tensor({shape[1]}, dtype, 3), bias = random_tensor({shape[1]}, dtype, 4);
      const Tensor running_mean = full({shape[1]}, 0.25, dtype), running_var = full({shape[1]}, 2, dtype);
      const Run r = run_training(x, weight, bias, running_mean, running_var);
      const std::vector<Tensor> grads = run_backward(r, grad_out, true);
      const auto v = x.to_vector<double>(), g = grad_out.to_vector<double>(), w = weight.to_vector<double>(), b = bias.to_vector<double>();
      std::vector<double> out(v.size()), grad_x(v.size()), means, vars, grad_weight, grad_bias;
      const Channels layout(shape);
      for (std::size_t c = 0; c < layout.channels; ++c) {
        const auto at = layout.indices(c);
        const double count = double(at.size());
        double mean = 0, var = 0, sum_g = 0, sum_gx = 0;
        for (std::size_t i : at) mean += v[i] / count;
        for (std::size_t i : at) var += (v[i] - mean) * (v[i] - mean);
        means.push_back(0.9 * 0.25 + 0.1 * mean);
        vars.push_back(0.9 * 2 + 0.1 * var / (count - 1));
        const double rstd = 1 / std::sqrt(var / count + kEps);
        for (std::size_t i : at) {
          out[i] = (v[i] - mean) * rstd * w[c] + b[c];
          sum_g += g[i];
          sum_gx += g[i] * (v[i] - mean) * rstd;
        }
        for (std::size_t i : at) grad_x[i] = w[c] * rstd * (g[i] - sum_g / count - (v[i] - mean) * rstd * sum_gx / count);
        grad_weight.push_back(sum_gx);
        grad_bias.push_back(sum_g);
      }
      INFO(dtype << " " << concat(shape));
      CHECK(error_against(r.out, out) < tolerance);
      CHECK(error_against(running_mean, means) < tolerance);
      CHECK(error_against(running_var, vars) < tolerance);
      CHECK(error_against(grads[0], grad_x) < tolerance * 10);
      CHECK(error_against(grads[1], grad_weight) < tolerance);
      CHECK(error_against(grads[2], grad_bias) < tolerance);
    }
  }
}

TEST_CASE("batch_norm: evaluation takes the running statistics as constants") {
  const Tensor x = random_tensor({3, 2, 4, 4}, DType::f64, 1), grad_out = random_tensor({3, 2, 4, 4}, DType::f64, 2);
  const Tensor mean = empty({2}, DType::f64), rstd = empty({2}, DType::f64), weight = from_values(std::vector<double>{2, -1}, {2});
  launch(BatchNormRunning{.running_mean = from_values(std::vector<double>{0.5, -0.5}, {2}),
                          .running_var = from_values(std::vector<double>{4, 0.25}, {2}),
                          .eps = 0,
                          .out = mean,
                          .rstd = rstd});
  CHECK(rstd.to_vector<double>() == std::vector<double>{0.5, 2});
  const Run r{x, weight, {}, mean, rstd, {}};
  const std::vector<Tensor> grads = run_backward(r, grad_out, false);
  std::vector<double> expected = grad_out.to_vector<double>();
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] *= i / 16 % 2 == 0 ? 1 : -2;
  CHECK(error_against(grads[0], expected) < 1e-15);
}

TEST_CASE("batch_norm: large means keep full precision") {
  std::vector<double> values(2048), expected(2048);
  for (std::size_t i = 0; i < values.size(); ++i) {
    expected[i] = i % 2 == 0 ? 1 : -1;
    values[i] = 1e6 + expected[i];
  }
  const Tensor x = tensor_of(values, {2, 1, 32, 32}, DType::f32);
  CHECK(error_against(run_training(x, {}, {}).out, expected) < 1e-5);
}

TEST_CASE("batch_norm: a training batch with one value per channel is refused") {
  for (const Shape& shape : {Shape{1, 3, 1, 1}, Shape{1, 3}, Shape{0, 3, 4, 4}}) {
    CHECK(message_of([&] { run_training(zeros(shape, DType::f32), {}, {}); }) ==
          concat("batch_norm_statistics: expected more than one value per channel when training, got x ", shape));
  }
}

TEST_CASE("batch_norm: results are the same on 1, 2 and 4 threads") {
  const Tensor x = random_tensor({16, 24, 14, 14}, DType::f32, 1), grad = random_tensor({16, 24, 14, 14}, DType::f32, 2),
               weight = random_tensor({24}, DType::f32, 3);
  CHECK(same_on_all_threads([&] {
    const Run r = run_training(x, weight, weight);
    std::vector<Tensor> all = run_backward(r, grad, true);
    all.push_back(r.out);
    return all;
  }));
}

TEST_CASE("batch_norm: misaligned tensors, nothing written outside") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (std::int64_t run : {1, 7, 33}) {
      const Tensor x = random_tensor({3, 5, run}, dtype, 1), weight = random_tensor({5}, dtype, 2);
      const Run expected = run_training(x, weight, {});
      const auto expected_grads = run_backward(expected, x, true);
      const Guarded gx(x), gw(weight), mean({5}, dtype), rstd({5}, dtype), out(x.shape(), dtype), grad_x(x.shape(), dtype),
          grad_weight({5}, dtype), grad_bias({5}, dtype);
      launch(BatchNormStatistics{
          .x = gx.tensor, .eps = kEps, .momentum = 0.1, .out = mean.tensor, .rstd = rstd.tensor, .running_mean = {}, .running_var = {}});
      launch(BatchNormApply{.x = gx.tensor, .mean = mean.tensor, .rstd = rstd.tensor, .weight = gw.tensor, .bias = {}, .out = out.tensor});
      launch(BatchNormBackward{.grad_out = gx.tensor,
                               .x = gx.tensor,
                               .mean = mean.tensor,
                               .rstd = rstd.tensor,
                               .weight = gw.tensor,
                               .batch_statistics = true,
                               .out = grad_x.tensor,
                               .grad_weight = grad_weight.tensor,
                               .grad_bias = grad_bias.tensor});
      for (const Guarded* g : {&gx, &gw, &mean, &rstd, &out, &grad_x, &grad_weight, &grad_bias}) CHECK(g->is_intact());
      CHECK(same_bits(out.tensor, expected.out));
      CHECK(same_bits(grad_x.tensor, expected_grads[0]));
    }
  }
}
