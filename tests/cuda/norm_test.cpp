// The CUDA norms against the CPU's: bit for bit where arithmetic is per element or sums are exact, within the roundings of
// their sums elsewhere.
#include <refrain/kernels/norm/norm.h>
#include <refrain/tests/cuda/row_tensors.h>

using namespace refrain;

namespace {

constexpr double kEps = 1e-5;

struct Dtypes {
  DType x, out, weight;
  DType statistics() const { return accumulator_dtype(x); }
};

const std::vector<Dtypes> kCombinations = {
    {DType::f64, DType::f64, DType::f64},  {DType::f32, DType::f32, DType::f32},   {DType::f16, DType::f16, DType::f16},
    {DType::bf16, DType::bf16, DType::bf16}, {DType::f32, DType::f16, DType::f32}, {DType::f32, DType::bf16, DType::f32},
    {DType::f16, DType::f16, DType::f32},  {DType::bf16, DType::bf16, DType::f32},
};

std::string name_of(const Dtypes& d) { return concat(d.x, " ", d.out, " ", d.weight); }

struct Forward {
  Tensor out, mean, rstd, rebuilt;
};

Forward layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, const Dtypes& d, std::int64_t margin,
                   double eps = kEps) {
  DeviceTensors on(margin);
  const Shape rows{x.dim(0)};
  const Tensor dx = on.put(x), dw = on.put(weight), db = on.put(bias);
  const Tensor out = on.output(x.shape(), d.out), mean = on.output(rows, d.statistics()), rstd = on.output(rows, d.statistics());
  const Tensor rebuilt = on.output(x.shape(), d.out);
  launch(LayerNormForward{.x = dx, .weight = dw, .bias = db, .eps = eps, .out = out, .mean = mean, .rstd = rstd});
  launch(LayerNormRebuild{.x = dx, .mean = mean, .rstd = rstd, .weight = dw, .bias = db, .out = rebuilt});
  CHECK(on.are_intact());
  return {on_cpu(out), on_cpu(mean), on_cpu(rstd), on_cpu(rebuilt)};
}

struct Gradients {
  Tensor x, weight, bias;
};

struct BackwardInputs {
  Tensor grad_out, x, mean, rstd, weight;
};

Gradients layer_norm_backward(const BackwardInputs& in, const Dtypes& d, const Device& device, std::int64_t margin = kAligned) {
  const std::int64_t rows = in.x.dim(0), channels = in.x.dim(1);
  DeviceTensors on(margin);
  const bool is_cuda = !(device == Device::cpu());
  const auto put = [&](const Tensor& t) { return is_cuda ? on.put(t) : t; };
  const auto output = [&](const Shape& shape, DType dtype) { return is_cuda ? on.output(shape, dtype) : full(shape, 7, dtype); };
  const Gradients g{output(in.x.shape(), d.x), output({channels}, d.weight), output({channels}, d.weight)};
  const Tensor scratch = output({LayerNormBackward::num_scratch(device.target(), rows, channels)}, d.statistics());
  launch(LayerNormBackward{.grad_out = put(in.grad_out),
                           .x = put(in.x),
                           .mean = put(in.mean),
                           .rstd = put(in.rstd),
                           .weight = put(in.weight),
                           .out = g.x,
                           .grad_weight = g.weight,
                           .grad_bias = g.bias,
                           .scratch = scratch});
  CHECK(on.are_intact());
  return {on_cpu(g.x), on_cpu(g.weight), on_cpu(g.bias)};
}

void check_same(const Gradients& a, const Gradients& b) {
  CHECK(num_different(a.x, b.x) == 0);
  CHECK(num_different(a.weight, b.weight) == 0);
  CHECK(num_different(a.bias, b.bias) == 0);
}

// mean is off by the roundings of the sum of differences from a first mean and by its own; rstd by those of its sum.
void check_statistics(const Tensor& x, const Forward& got, double eps = kEps) {
  const std::vector<double> v = x.to_vector<double>();
  const std::size_t channels = std::size_t(x.dim(1)), rows = std::size_t(x.dim(0));
  const DType dtype = got.mean.dtype();
  std::vector<double> means, rstds, spreads;
  for (std::size_t r = 0; r < rows; ++r) {
    long double mean = 0, variance = 0, spread = 0;
    for (std::size_t c = 0; c < channels; ++c) mean += v[r * channels + c];
    mean /= (long double)(std::max<std::size_t>(channels, 1));
    for (std::size_t c = 0; c < channels; ++c) {
      const long double difference = v[r * channels + c] - mean;
      variance += difference * difference / (long double)(channels), spread += std::abs(difference) / (long double)(channels);
    }
    means.push_back(double(mean)), spreads.push_back(double(spread)),
        rstds.push_back(double(1 / std::sqrt(variance + (long double)(eps))));
  }
  const double n = double(channels);
  CHECK(num_outside(got.mean, means, [&](std::size_t r, double e) {
          return roundings_of(dtype, n + 4) * spreads[r] + roundings_of(dtype, 1) * std::abs(e);
        }) == 0);
  CHECK(num_outside(got.rstd, rstds, [&](std::size_t, double e) { return roundings_of(dtype, n + 12) * e; }) == 0);
}

}  // namespace

TEST_CASE("cuda layer_norm: statistics within their roundings, outputs the CPU's bits, rebuilt alike, at any address") {
  for (const Dtypes& d : kCombinations) {
    for (const Shape& shape : {Shape{3, 1}, Shape{2, 31}, Shape{5, 32}, Shape{3, 33}, Shape{4, 197}, Shape{3, 1000},
                               Shape{2, 1032}, Shape{2, 5000}, Shape{1, 4101}, Shape{0, 8}, Shape{1, 8}}) {
      INFO(name_of(d) << " " << concat(shape));
      const Tensor x = random_tensor(shape, d.x, 1, -2, 3), weight = random_tensor({shape[1]}, d.weight, 2),
                   bias = random_tensor({shape[1]}, d.weight, 3);
      const Forward got = layer_norm(x, weight, bias, d, kAligned), elsewhere = layer_norm(x, weight, bias, d, kMisaligned);
      check_statistics(x, got);
      const Tensor expected = empty(shape, d.out);
      launch(LayerNormRebuild{.x = x, .mean = got.mean, .rstd = got.rstd, .weight = weight, .bias = bias, .out = expected});
      CHECK(num_different(got.out, expected) == 0);
      CHECK(num_different(got.rebuilt, expected) == 0);
      CHECK(num_different(elsewhere.mean, got.mean) == 0);
      CHECK(num_different(elsewhere.rstd, got.rstd) == 0);
      CHECK(num_different(elsewhere.out, expected) == 0);
      CHECK(num_different(elsewhere.rebuilt, expected) == 0);
    }
  }
}

TEST_CASE("cuda layer_norm: either parameter may be absent, outputs may be without bytes, rows may be empty") {
  for (const Dtypes& d : {kCombinations[1], kCombinations[3], kCombinations[5]}) {
    for (const Shape& shape : {Shape{3, 33}, Shape{2, 1032}}) {
      for (int mode = 0; mode < 3; ++mode) {
        INFO(name_of(d) << " " << concat(shape) << " mode " << mode);
        const Dtypes used = mode == 0 ? Dtypes{d.x, d.x, d.x} : d;  // no parameter that would say their dtype
        const Tensor x = random_tensor(shape, d.x, 1, -2, 3);
        const Tensor weight = mode == 1 ? random_tensor({shape[1]}, d.weight, 2) : Tensor();
        const Tensor bias = mode == 2 ? random_tensor({shape[1]}, d.weight, 3) : Tensor();
        const Forward got = layer_norm(x, weight, bias, used, kAligned);
        const Tensor expected = empty(shape, used.out);
        launch(LayerNormRebuild{.x = x, .mean = got.mean, .rstd = got.rstd, .weight = weight, .bias = bias, .out = expected});
        CHECK(num_different(got.out, expected) == 0);
        CHECK(num_different(got.rebuilt, expected) == 0);
        // Each output alone.
        const Device cuda = cuda_device();
        const Tensor dx = on_cuda(x), dw = on_cuda(weight), db = on_cuda(bias), none = without_bytes(shape, used.out, cuda);
        const Tensor out = poisoned(shape, used.out, cuda), mean = poisoned({shape[0]}, DType::f32, cuda),
                     rstd = poisoned({shape[0]}, DType::f32, cuda);
        launch(LayerNormForward{.x = dx, .weight = dw, .bias = db, .eps = kEps, .out = out, .mean = {}, .rstd = {}});
        launch(LayerNormForward{.x = dx, .weight = dw, .bias = db, .eps = kEps, .out = none, .mean = mean, .rstd = {}});
        launch(LayerNormForward{.x = dx, .weight = dw, .bias = db, .eps = kEps, .out = none, .mean = {}, .rstd = rstd});
        launch(LayerNormForward{.x = dx, .weight = dw, .bias = db, .eps = kEps, .out = none, .mean = {}, .rstd = {}});
        launch(LayerNormRebuild{.x = dx, .mean = mean, .rstd = rstd, .weight = dw, .bias = db, .out = none});
        CHECK(num_different(on_cpu(out), expected) == 0);
        CHECK(num_different(on_cpu(mean), got.mean) == 0);
        CHECK(num_different(on_cpu(rstd), got.rstd) == 0);
      }
    }
  }
  const Tensor x = empty({3, 0}, DType::f32, cuda_device()), mean = poisoned({3}, DType::f32, cuda_device()),
               rstd = poisoned({3}, DType::f32, cuda_device());
  launch(LayerNormForward{.x = x, .weight = {}, .bias = {}, .eps = 0.25, .out = x, .mean = mean, .rstd = rstd});
  CHECK(on_cpu(mean).to_vector<double>() == std::vector<double>(3, 0.0));
  CHECK(on_cpu(rstd).to_vector<double>() == std::vector<double>(3, 2.0));
}

TEST_CASE("cuda layer_norm: a large mean costs no precision, a row keeps its bits wherever it stands, NaN stays in its row") {
  const Dtypes d = kCombinations[1];
  for (std::int64_t channels : {100, 1500}) {
    Tensor x = random_tensor({20, channels}, DType::f32, 4, 9999, 10001);
    check_statistics(x, layer_norm(x, {}, {}, d, kAligned));
    const Tensor row = empty({1, channels}, DType::f32);
    std::copy_n(x.data<float>() + channels, channels, row.data<float>());
    const Tensor all = layer_norm(x, {}, {}, d, kAligned).out, one = layer_norm(row, {}, {}, d, kMisaligned).out;
    CHECK(std::equal(one.data<float>(), one.data<float>() + channels, all.data<float>() + channels));
    x.data<float>()[channels + 5] = NAN;
    const Forward got = layer_norm(x, {}, {}, d, kAligned);
    const std::vector<double> out = got.out.to_vector<double>();
    for (std::int64_t i = 0; i < 20 * channels; ++i) CHECK(std::isnan(out[std::size_t(i)]) == (i / channels == 1));
  }
}

TEST_CASE("cuda layer_norm_backward: gradients within the roundings of their sums, the same at any address") {
  for (const Dtypes& d : kCombinations) {
    // Rows of several pieces, and of a piece whose warps have several rows.
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 31}, Shape{23, 32}, Shape{600, 33}, Shape{90, 197}, Shape{37, 1000},
                               Shape{40, 1032}, Shape{7, 5000}, Shape{5, 4101}}) {
      if (shape[0] == 600 && d.x != DType::bf16 && d.out != DType::f32) continue;
      INFO(name_of(d) << " " << concat(shape));
      const std::int64_t rows = shape[0], channels = shape[1];
      const DType accumulator = d.statistics();
      const BackwardInputs in{random_tensor(shape, d.out, 5, -1, 2), random_tensor(shape, d.x, 6, -2, 3),
                              random_tensor({rows}, accumulator, 7, 0, 1), random_tensor({rows}, accumulator, 8, 0.5, 1.5),
                              random_tensor({channels}, d.weight, 9)};
      const Gradients got = layer_norm_backward(in, d, cuda_device());
      check_same(layer_norm_backward(in, d, cuda_device(), kMisaligned), got);
      const std::vector<double> dy = in.grad_out.to_vector<double>(), x = in.x.to_vector<double>(),
                                mean = in.mean.to_vector<double>(), rstd = in.rstd.to_vector<double>(),
                                w = in.weight.to_vector<double>();
      std::vector<double> grad_x, error_x, grad_w(w.size()), grad_b(w.size()), error_w(w.size()), error_b(w.size());
      const auto u = [&](double n) { return roundings_of(accumulator, n); };
      const double n = double(channels), m = double(rows);
      for (std::size_t r = 0; r < std::size_t(rows); ++r) {
        double sum_g = 0, sum_gx = 0, magnitude_g = 0, magnitude_gx = 0;
        for (std::size_t c = 0; c < w.size(); ++c) {
          const std::size_t i = r * w.size() + c;
          const double xhat = (x[i] - mean[r]) * rstd[r], g = dy[i] * w[c];
          sum_g += g, sum_gx += g * xhat, magnitude_g += std::abs(g), magnitude_gx += std::abs(g * xhat);
          grad_w[c] += dy[i] * xhat, grad_b[c] += dy[i];
          error_w[c] += u(m + 6) * std::abs(dy[i] * xhat), error_b[c] += u(m + 4) * std::abs(dy[i]);
        }
        for (std::size_t c = 0; c < w.size(); ++c) {
          const std::size_t i = r * w.size() + c;
          const double xhat = (x[i] - mean[r]) * rstd[r], g = dy[i] * w[c];
          grad_x.push_back(rstd[r] * (g - sum_g / n - xhat * sum_gx / n));
          error_x.push_back(rstd[r] * (u(n + 6) * (magnitude_g + std::abs(xhat) * magnitude_gx) / n +
                                       u(6) * (std::abs(g) + std::abs(sum_g / n) + std::abs(xhat * sum_gx / n))));
        }
      }
      CHECK(num_outside(got.x, grad_x, [&](std::size_t i, double e) { return stored(e, error_x[i], d.x); }) == 0);
      CHECK(num_outside(got.weight, grad_w, [&](std::size_t i, double e) { return stored(e, error_w[i], d.weight); }) == 0);
      CHECK(num_outside(got.bias, grad_b, [&](std::size_t i, double e) { return stored(e, error_b[i], d.weight); }) == 0);
    }
  }
}

TEST_CASE("cuda layer_norm_backward: sums of small integers give the CPU's bits") {
  for (const Dtypes& d : kCombinations) {
    for (const Shape& shape : {Shape{1, 1}, Shape{60, 33}, Shape{20, 1000}, Shape{20, 1032}, Shape{7, 5000}, Shape{4200, 5}, Shape{0, 5}}) {
      INFO(name_of(d) << " " << concat(shape));
      const DType accumulator = d.statistics();
      const BackwardInputs in{small_integers(shape, d.out, 5, 3), small_integers(shape, d.x, 6, 4),
                              small_integers({shape[0]}, accumulator, 7, 1), full({shape[0]}, 0.5, accumulator),
                              small_integers({shape[1]}, d.weight, 9, 2)};
      const Gradients expected = layer_norm_backward(in, d, Device::cpu());
      check_same(layer_norm_backward(in, d, cuda_device()), expected);
      check_same(layer_norm_backward(in, d, cuda_device(), kMisaligned), expected);
    }
  }
}

TEST_CASE("cuda layer_norm_backward: each gradient alone is what it is among the others") {
  const Device cuda = cuda_device();
  for (const Dtypes& d : {kCombinations[1], kCombinations[3], kCombinations[4]}) {
    for (const Shape& shape : {Shape{30, 33}, Shape{40, 1032}}) {
      for (bool has_weight : {true, false}) {
        if (!has_weight && d.weight != d.x && d.x != DType::f32) continue;
        INFO(name_of(d) << " " << concat(shape) << " " << has_weight);
        const BackwardInputs in{random_tensor(shape, d.out, 5), random_tensor(shape, d.x, 6),
                                random_tensor({shape[0]}, DType::f32, 7), random_tensor({shape[0]}, DType::f32, 8, 0.5, 1.5),
                                has_weight ? random_tensor({shape[1]}, d.weight, 9) : Tensor()};
        const Gradients all = layer_norm_backward(in, d, cuda);
        const Tensor grad_out = on_cuda(in.grad_out), x = on_cuda(in.x), mean = on_cuda(in.mean), rstd = on_cuda(in.rstd),
                     weight = on_cuda(in.weight);
        const Tensor none = without_bytes(shape, d.x, cuda), no_parameter = without_bytes({shape[1]}, d.weight, cuda);
        const Tensor scratch = poisoned({LayerNormBackward::num_scratch(DeviceKind::cuda, shape[0], shape[1])}, DType::f32, cuda);
        const auto backward = [&](const Tensor& out, const Tensor& grad_weight, const Tensor& grad_bias) {
          launch(LayerNormBackward{.grad_out = grad_out, .x = x, .mean = mean, .rstd = rstd, .weight = weight, .out = out,
                                   .grad_weight = grad_weight, .grad_bias = grad_bias, .scratch = scratch});
        };
        const Tensor grad_x = poisoned(shape, d.x, cuda), grad_weight = poisoned({shape[1]}, d.weight, cuda),
                     grad_bias = poisoned({shape[1]}, d.weight, cuda);
        backward(none, grad_weight, no_parameter);
        backward(none, no_parameter, grad_bias);
        backward(grad_x, no_parameter, no_parameter);
        backward(none, no_parameter, no_parameter);
        check_same({on_cpu(grad_x), on_cpu(grad_weight), on_cpu(grad_bias)}, all);
      }
    }
  }
}
