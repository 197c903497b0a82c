// Layer norm against a plain loop in double.
#include <refrain/kernels/norm/norm.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

constexpr double kEps = 1e-5;

struct Run {
  Tensor x, weight, bias, out, mean, rstd;
};

Run run_forward(const Tensor& x, const Tensor& weight = {}, const Tensor& bias = {}, double eps = kEps) {
  Shape rows = x.shape();
  rows.erase(rows.size() - 1);
  Run r{x, weight, bias, empty(x.shape(), x.dtype()), empty(rows, x.dtype()), empty(rows, x.dtype())};
  launch(LayerNormForward{.x = x, .weight = weight, .bias = bias, .eps = eps, .out = r.out, .mean = r.mean, .rstd = r.rstd});
  return r;
}

struct Gradients {
  Tensor x, weight, bias;
};

Gradients run_backward(const Run& r, const Tensor& grad_out, bool wants_parameters = true) {
  const std::int64_t channels = r.x.dim(-1);
  Gradients g{empty(r.x.shape(), r.x.dtype()), {}, {}};
  Tensor scratch;
  if (wants_parameters) {
    g.weight = full({channels}, 7, r.x.dtype());
    g.bias = full({channels}, 7, r.x.dtype());
    scratch = empty({LayerNormBackward::num_scratch(DeviceKind::cpu, r.mean.numel(), channels)}, r.x.dtype());
  }
  launch(LayerNormBackward{.grad_out = grad_out, .x = r.x, .mean = r.mean, .rstd = r.rstd, .weight = r.weight, .out = g.x,
                           .grad_weight = g.weight, .grad_bias = g.bias, .scratch = scratch});
  return g;
}

struct Reference {
  std::vector<double> out, grad_x, grad_weight, grad_bias;
};

Reference reference(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& grad_out) {
  const std::size_t channels = std::size_t(x.dim(-1)), rows = std::size_t(x.numel()) / channels;
  const auto v = x.to_vector<double>(), g = grad_out.to_vector<double>();
  const auto w = weight.defined() ? weight.to_vector<double>() : std::vector<double>(channels, 1.0);
  const auto b = bias.defined() ? bias.to_vector<double>() : std::vector<double>(channels, 0.0);
  Reference r{std::vector<double>(v.size()), std::vector<double>(v.size()), std::vector<double>(channels), std::vector<double>(channels)};
  for (std::size_t row = 0; row < rows; ++row) {
    const double* p = v.data() + row * channels;
    const double* dy = g.data() + row * channels;
    long double mean = 0, variance = 0, sum_g = 0, sum_gx = 0;
    for (std::size_t c = 0; c < channels; ++c) mean += p[c];
    mean /= double(channels);
    for (std::size_t c = 0; c < channels; ++c) variance += (p[c] - mean) * (p[c] - mean);
    const long double rstd = 1 / std::sqrt(variance / double(channels) + kEps);
    for (std::size_t c = 0; c < channels; ++c) {
      const double xhat = double((p[c] - mean) * rstd);
      r.out[row * channels + c] = xhat * w[c] + b[c];
      r.grad_weight[c] += dy[c] * xhat;
      r.grad_bias[c] += dy[c];
      sum_g += dy[c] * w[c];
      sum_gx += dy[c] * w[c] * xhat;
    }
    for (std::size_t c = 0; c < channels; ++c) {
      const long double xhat = (p[c] - mean) * rstd;
      r.grad_x[row * channels + c] = double(rstd * (dy[c] * w[c] - sum_g / double(channels) - xhat * sum_gx / double(channels)));
    }
  }
  return r;
}

}  // namespace

TEST_CASE("layer_norm: forward and backward match a loop in double") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const double tolerance = dtype == DType::f64 ? 1e-12 : 2e-5;
    for (const Shape& shape :
         {Shape{1, 1}, Shape{3, 31}, Shape{2, 3, 32}, Shape{5, 33}, Shape{1000}, Shape{100, 1000}, Shape{700, 5}, Shape{2, 0, 3, 7}}) {
      for (int mode = 0; mode < 4; ++mode) {
        const Tensor x = random_tensor(shape, dtype, 1, -2, 3), grad_out = random_tensor(shape, dtype, 2);
        const Tensor weight = mode & 1 ? random_tensor({shape.back()}, dtype, 3) : Tensor();
        const Tensor bias = mode & 2 ? random_tensor({shape.back()}, dtype, 4) : Tensor();
        const Run r = run_forward(x, weight, bias);
        const Gradients g = run_backward(r, grad_out);
        const Reference expected = reference(x, weight, bias, grad_out);
        INFO(dtype << " " << concat(shape) << " mode " << mode);
        CHECK(error_against(r.out, expected.out) < tolerance);
        // With 1 channel rstd is 1/sqrt(eps) and every term cancels: the error is measured against the terms.
        CHECK(error_against(g.x, expected.grad_x) < tolerance * (shape.back() == 1 ? 316 : 1));
        CHECK(error_against(g.weight, expected.grad_weight) < tolerance);
        CHECK(error_against(g.bias, expected.grad_bias) < tolerance);
      }
    }
  }
}

TEST_CASE("layer_norm: large means keep full precision") {
  for (double mean : {100.0, 1e6}) {
    std::vector<double> values(1024), expected(1024);
    for (std::size_t i = 0; i < values.size(); ++i) {
      expected[i] = i % 2 == 0 ? 1 : -1;
      values[i] = mean + expected[i];
    }
    for (DType dtype : {DType::f32, DType::f64})
      CHECK(error_against(run_forward(tensor_of(values, {1, 1024}, dtype), {}, {}, 0).out, expected) < 1e-6);
  }
}

TEST_CASE("layer_norm: values of a thousand do not overflow") {
  CHECK(error_against(run_forward(tensor_of({1000, -1000, 1000, -1000}, {1, 4}, DType::f32)).out, {1, -1, 1, -1}) < 1e-6);
}

TEST_CASE("layer_norm: a constant row gives the bias, not NaN") {
  for (double value : {0.0, 0.1, 12345.678, -1e30}) {
    const Run r = run_forward(full({2, 37}, value, DType::f32), full({37}, 2, DType::f32), full({37}, 0.5, DType::f32));
    CHECK(error_against(r.out, std::vector<double>(74, 0.5)) < 1e-5);
  }
}

TEST_CASE("layer_norm: a rebuilt output has the bits of the first") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (int mode = 0; mode < 4; ++mode) {
      const Tensor weight = mode & 1 ? random_tensor({77}, dtype, 3) : Tensor(), bias = mode & 2 ? random_tensor({77}, dtype, 4) : Tensor();
      const Run r = run_forward(random_tensor({65, 77}, dtype, 5, 90, 110), weight, bias);
      const Tensor again = empty(r.x.shape(), dtype);
      launch(LayerNormRebuild{.x = r.x, .mean = r.mean, .rstd = r.rstd, .weight = weight, .bias = bias, .out = again});
      CHECK(same_bits(again, r.out));
    }
  }
}

TEST_CASE("layer_norm: a row's bits do not depend on the other rows") {
  const Tensor x = random_tensor({130, 384}, DType::f32, 6), weight = random_tensor({384}, DType::f32, 7),
               grad = random_tensor({130, 384}, DType::f32, 8);
  const Run all = run_forward(x, weight);
  const Gradients all_grads = run_backward(all, grad);
  const auto row = [](const Tensor& t, std::int64_t r) {
    const auto values = t.to_vector<double>();
    return tensor_of({values.begin() + r * 384, values.begin() + (r + 1) * 384}, {1, 384}, DType::f32);
  };
  for (std::int64_t r : {0, 1, 64, 129}) {
    const Run one = run_forward(row(x, r), weight);
    CHECK(same_bits(one.out, row(all.out, r)));
    CHECK(same_bits(run_backward(one, row(grad, r)).x, row(all_grads.x, r)));
  }
}

TEST_CASE("layer_norm: results are the same on 1, 2 and 4 threads") {
  const Tensor x = random_tensor({1576, 96}, DType::f32, 9), weight = random_tensor({96}, DType::f32, 10),
               grad = random_tensor({1576, 96}, DType::f32, 11);
  CHECK(same_on_all_threads([&] {
    const Run r = run_forward(x, weight);
    const Gradients g = run_backward(r, grad);
    return std::vector<Tensor>{r.out, r.mean, r.rstd, g.x, g.weight, g.bias};
  }));
}

TEST_CASE("layer_norm: outputs nobody wants are left out") {
  const Tensor x = random_tensor({4, 9}, DType::f32, 12), grad = random_tensor({4, 9}, DType::f32, 13);
  const Run r = run_forward(x);
  const Tensor none = without_bytes({4, 9}, DType::f32, x.device()), mean = empty({4}, DType::f32), rstd = empty({4}, DType::f32);
  launch(LayerNormForward{.x = x, .weight = {}, .bias = {}, .eps = kEps, .out = none, .mean = mean, .rstd = rstd});
  CHECK(same_bits(mean, r.mean));
  CHECK(same_bits(rstd, r.rstd));
  const Gradients all = run_backward(r, grad);
  CHECK(same_bits(run_backward(r, grad, false).x, all.x));
  const Tensor grad_bias = empty({9}, DType::f32), scratch = empty({LayerNormBackward::num_scratch(DeviceKind::cpu, 4, 9)}, DType::f32);
  launch(LayerNormBackward{.grad_out = grad,
                           .x = x,
                           .mean = r.mean,
                           .rstd = r.rstd,
                           .weight = {},
                           .out = none,
                           .grad_weight = {},
                           .grad_bias = grad_bias,
                           .scratch = scratch});
  CHECK(same_bits(grad_bias, all.bias));
}

TEST_CASE("layer_norm: wrong arguments are named before anything is written") {
  const Tensor x = zeros({2, 3}, DType::f32);
  try {
    run_forward(x, zeros({4}, DType::f32));
    FAIL("accepted");
  } catch (const InvalidArgument& e) {
    CHECK(std::string(e.what()) == "layer_norm: weight must be [3], got [4]");
  }
  CHECK_THROWS_AS(run_forward(x, zeros({3}, DType::f64)), InvalidArgument);
  CHECK_THROWS_AS(run_forward(x, {}, {}, -1), InvalidArgument);
  CHECK_THROWS_AS(
      launch(LayerNormForward{.x = zeros({2, 3}, DType::i64), .weight = {}, .bias = {}, .eps = 0, .out = x, .mean = {}, .rstd = {}}),
      InvalidArgument);
}

TEST_CASE("layer_norm: misaligned tensors, nothing written outside") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (std::int64_t channels : {1, 7, 15, 17, 33, 100}) {
      const Tensor x = random_tensor({3, channels}, dtype, 1), grad = random_tensor({3, channels}, dtype, 2),
                   weight = random_tensor({channels}, dtype, 3);
      const Run expected = run_forward(x, weight);
      const Gradients expected_grads = run_backward(expected, grad);
      const Guarded gx(x), gg(grad), gw(weight), out({3, channels}, dtype), mean({3}, dtype), rstd({3}, dtype),
          grad_x({3, channels}, dtype), grad_weight({channels}, dtype), grad_bias({channels}, dtype),
          scratch({LayerNormBackward::num_scratch(DeviceKind::cpu, 3, channels)}, dtype);
      launch(LayerNormForward{
          .x = gx.tensor, .weight = gw.tensor, .bias = {}, .eps = kEps, .out = out.tensor, .mean = mean.tensor, .rstd = rstd.tensor});
      launch(LayerNormBackward{.grad_out = gg.tensor,
                               .x = gx.tensor,
                               .mean = mean.tensor,
                               .rstd = rstd.tensor,
                               .weight = gw.tensor,
                               .out = grad_x.tensor,
                               .grad_weight = grad_weight.tensor,
                               .grad_bias = grad_bias.tensor,
                               .scratch = scratch.tensor});
      for (const Guarded* g : {&gx, &gg, &gw, &out, &mean, &rstd, &grad_x, &grad_weight, &grad_bias, &scratch}) CHECK(g->is_intact());
      CHECK(same_bits(out.tensor, expected.out));
      CHECK(same_bits(grad_x.tensor, expected_grads.x));
      CHECK(same_bits(grad_weight.tensor, expected_grads.weight));
      CHECK(same_bits(grad_bias.tensor, expected_grads.bias));
    }
  }
}
