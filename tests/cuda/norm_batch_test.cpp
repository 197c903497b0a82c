// The CUDA batch norm against the CPU's: bit for bit where arithmetic is per element or sums are exact, within the roundings of
// their sums elsewhere.
#include <refrain/kernels/norm/norm.h>
#include <refrain/tests/cuda/row_tensors.h>

using namespace refrain;

namespace {

struct Dtypes {
  DType x, out, weight;
};

const std::vector<Dtypes> kCombinations = {
    {DType::f64, DType::f64, DType::f64},    {DType::f32, DType::f32, DType::f32},  {DType::f16, DType::f16, DType::f16},
    {DType::bf16, DType::bf16, DType::bf16}, {DType::f32, DType::f16, DType::f32},  {DType::f32, DType::bf16, DType::f32},
    {DType::f16, DType::f16, DType::f32},    {DType::bf16, DType::bf16, DType::f32},
};

// Runs of 1, of odd and even lengths, of whole packs, and longer than a block has threads; one sample and many.
const std::vector<Shape> kShapes = {{5, 3}, {600, 2}, {4, 3, 7}, {3, 5, 8, 4}, {2, 3, 24, 31}, {1, 2, 1040}};

std::string name_of(const Dtypes& d, const Shape& shape) { return concat(d.x, " ", d.out, " ", d.weight, " ", shape); }

struct Statistics {
  Tensor mean, rstd, running_mean, running_var;
};

Statistics statistics(const Tensor& x, DType running, std::int64_t margin) {
  DeviceTensors on(margin);
  const Shape channels{x.dim(1)};
  const DType accumulator = accumulator_dtype(x.dtype());
  const Statistics s{on.output(channels, accumulator), on.output(channels, accumulator), on.put(full(channels, 0.5, running)),
                     on.put(full(channels, 2, running))};
  launch(BatchNormStatistics{.x = on.put(x),
                             .eps = 1e-5,
                             .momentum = 0.25,
                             .out = s.mean,
                             .rstd = s.rstd,
                             .running_mean = s.running_mean,
                             .running_var = s.running_var});
  CHECK(on.are_intact());
  return {on_cpu(s.mean), on_cpu(s.rstd), on_cpu(s.running_mean), on_cpu(s.running_var)};
}

struct Gradients {
  Tensor x, weight, bias;
};

struct BackwardInputs {
  Tensor grad_out, x, mean, rstd, weight;
};

Gradients backward(const BackwardInputs& in, const Dtypes& d, bool batch_statistics, bool is_cuda,
                   std::int64_t margin = kAligned) {
  DeviceTensors on(margin);
  const Shape channels{in.x.dim(1)};
  const auto put = [&](const Tensor& t) { return is_cuda ? on.put(t) : t; };
  const auto output = [&](const Shape& shape, DType dtype) { return is_cuda ? on.output(shape, dtype) : empty(shape, dtype); };
  const Gradients g{output(in.x.shape(), d.x), output(channels, d.weight), output(channels, d.weight)};
  launch(BatchNormBackward{.grad_out = put(in.grad_out),
                           .x = put(in.x),
                           .mean = put(in.mean),
                           .rstd = put(in.rstd),
                           .weight = put(in.weight),
                           .batch_statistics = batch_statistics,
                           .out = g.x,
                           .grad_weight = g.weight,
                           .grad_bias = g.bias});
  CHECK(on.are_intact());
  return {on_cpu(g.x), on_cpu(g.weight), on_cpu(g.bias)};
}

void check_same(const Gradients& a, const Gradients& b) {
  CHECK(num_different(a.x, b.x) == 0);
  CHECK(num_different(a.weight, b.weight) == 0);
  CHECK(num_different(a.bias, b.bias) == 0);
}

// Calls f(element, channel).
template <class F>
void for_elements(const Shape& shape, F&& f) {
  std::int64_t run = 1;
  for (int i = 2; i < shape.size(); ++i) run *= shape[i];
  for (std::int64_t i = 0; i < numel_of(shape); ++i) f(std::size_t(i), std::size_t(i / run % shape[1]));
}

}  // namespace

TEST_CASE("cuda batch_norm_statistics: within the roundings of their sums, the same at any address, running ones moved") {
  for (DType dtype : kFloating) {
    for (DType running : {dtype, accumulator_dtype(dtype)}) {
      for (const Shape& shape : kShapes) {
        INFO(name_of({dtype, dtype, running}, shape));
        const Tensor x = random_tensor(shape, dtype, 1, -1, 3);
        const Statistics got = statistics(x, running, kAligned), elsewhere = statistics(x, running, kMisaligned);
        CHECK(num_different(got.mean, elsewhere.mean) == 0);
        CHECK(num_different(got.rstd, elsewhere.rstd) == 0);
        CHECK(num_different(got.running_mean, elsewhere.running_mean) == 0);
        CHECK(num_different(got.running_var, elsewhere.running_var) == 0);
        const std::vector<double> v = x.to_vector<double>();
        const std::size_t channels = std::size_t(shape[1]);
        const double n = double(v.size() / channels);
        std::vector<double> mean(channels), squares(channels), spread(channels), rstd, running_mean, running_var;
        for_elements(shape, [&](std::size_t i, std::size_t c) { mean[c] += v[i] / n; });
        for_elements(shape, [&](std::size_t i, std::size_t c) {
          squares[c] += (v[i] - mean[c]) * (v[i] - mean[c]), spread[c] += std::abs(v[i] - mean[c]) / n;
        });
        for (std::size_t c = 0; c < channels; ++c) {
          rstd.push_back(1 / std::sqrt(squares[c] / n + 1e-5));
          running_mean.push_back(0.5 + 0.25 * (mean[c] - 0.5));
          running_var.push_back(2 + 0.25 * (squares[c] / (n - 1) - 2));
        }
        const DType accumulator = got.mean.dtype();
        const auto mean_error = [&](std::size_t c) {
          return roundings_of(accumulator, n + 4) * spread[c] + roundings_of(accumulator, 1) * std::abs(mean[c]);
        };
        CHECK(num_outside(got.mean, mean, [&](std::size_t c, double) { return mean_error(c); }) == 0);
        CHECK(num_outside(got.rstd, rstd, [&](std::size_t, double e) { return roundings_of(accumulator, n + 12) * e; }) == 0);
        CHECK(num_outside(got.running_mean, running_mean, [&](std::size_t c, double e) {
                return stored(e, 0.25 * mean_error(c) + roundings_of(accumulator, 3), running);
              }) == 0);
        CHECK(num_outside(got.running_var, running_var, [&](std::size_t c, double e) {
                return stored(e, 0.25 * roundings_of(accumulator, n + 12) * squares[c] / (n - 1) + roundings_of(accumulator, 6),
                              running);
              }) == 0);
      }
    }
  }
}

TEST_CASE("cuda batch_norm_running: the CPU's bits, each output alone as well") {
  const Device cuda = cuda_device();
  for (DType dtype : kFloating) {
    for (std::int64_t channels : {0, 1, 33, 1000}) {
      INFO(dtype << " " << channels);
      const DType accumulator = accumulator_dtype(dtype);
      const Tensor running_mean = random_tensor({channels}, dtype, 1), running_var = random_tensor({channels}, dtype, 2, 0, 2);
      const Tensor mean = empty({channels}, accumulator), rstd = empty({channels}, accumulator);
      launch(BatchNormRunning{.running_mean = running_mean, .running_var = running_var, .eps = 1e-5, .out = mean, .rstd = rstd});
      const Tensor got_mean = poisoned({channels}, accumulator, cuda), got_rstd = poisoned({channels}, accumulator, cuda);
      const Tensor m = on_cuda(running_mean), v = on_cuda(running_var), none = without_bytes({channels}, accumulator, cuda);
      launch(BatchNormRunning{.running_mean = m, .running_var = v, .eps = 1e-5, .out = got_mean, .rstd = {}});
      launch(BatchNormRunning{.running_mean = m, .running_var = v, .eps = 1e-5, .out = none, .rstd = got_rstd});
      launch(BatchNormRunning{.running_mean = m, .running_var = v, .eps = 1e-5, .out = none, .rstd = {}});
      CHECK(num_different(on_cpu(got_mean), mean) == 0);
      CHECK(num_different(on_cpu(got_rstd), rstd) == 0);
    }
  }
}

TEST_CASE("cuda batch_norm: applied with the CPU's bits, at any address, with and without parameters") {
  for (const Dtypes& d : kCombinations) {
    for (const Shape& shape : kShapes) {
      for (int mode = 0; mode < 4; ++mode) {
        if (mode != 3 && shape != kShapes[2]) continue;
        const Dtypes used = mode == 0 ? Dtypes{d.x, d.x, d.x} : d;
        INFO(name_of(used, shape) << " mode " << mode);
        const DType accumulator = accumulator_dtype(d.x);
        const Tensor x = random_tensor(shape, d.x, 1, -2, 3), mean = random_tensor({shape[1]}, accumulator, 2);
        const Tensor rstd = random_tensor({shape[1]}, accumulator, 3, 0.5, 1.5);
        const Tensor weight = mode & 1 ? random_tensor({shape[1]}, d.weight, 4) : Tensor();
        const Tensor bias = mode & 2 ? random_tensor({shape[1]}, d.weight, 5) : Tensor();
        const Tensor expected = empty(shape, used.out);
        launch(BatchNormApply{.x = x, .mean = mean, .rstd = rstd, .weight = weight, .bias = bias, .out = expected});
        for (std::int64_t margin : {kAligned, kMisaligned}) {
          DeviceTensors on(margin);
          const Tensor out = on.output(shape, used.out);
          launch(BatchNormApply{.x = on.put(x),
                                .mean = on.put(mean),
                                .rstd = on.put(rstd),
                                .weight = on.put(weight),
                                .bias = on.put(bias),
                                .out = out});
          CHECK(on.are_intact());
          CHECK(num_different(on_cpu(out), expected) == 0);
        }
      }
    }
  }
}

TEST_CASE("cuda batch_norm_backward: gradients within the roundings of their sums, the same at any address, each alone as well") {
  for (const Dtypes& d : kCombinations) {
    for (const Shape& shape : kShapes) {
      for (bool batch_statistics : {true, false}) {
        INFO(name_of(d, shape) << " " << batch_statistics);
        const DType accumulator = accumulator_dtype(d.x);
        const Shape channels{shape[1]};
        const BackwardInputs in{random_tensor(shape, d.out, 1, -1, 2), random_tensor(shape, d.x, 2, -2, 3),
                                random_tensor(channels, accumulator, 3), random_tensor(channels, accumulator, 4, 0.5, 1.5),
                                random_tensor(channels, d.weight, 5)};
        const Gradients got = backward(in, d, batch_statistics, true);
        check_same(backward(in, d, batch_statistics, true, kMisaligned), got);
        const std::vector<double> dy = in.grad_out.to_vector<double>(), x = in.x.to_vector<double>(),
                                  mean = in.mean.to_vector<double>(), rstd = in.rstd.to_vector<double>(),
                                  w = in.weight.to_vector<double>();
        const std::size_t count = w.size();
        std::vector<double> sum_g(count), sum_gx(count), all_g(count), all_gx(count), grad_x(x.size()), error(x.size());
        const double n = double(x.size() / count);
        const auto u = [&](double roundings) { return roundings_of(accumulator, roundings); };
        for_elements(shape, [&](std::size_t i, std::size_t c) {
          const double gx = dy[i] * (x[i] - mean[c]) * rstd[c];
          sum_g[c] += dy[i], sum_gx[c] += gx, all_g[c] += std::abs(dy[i]), all_gx[c] += std::abs(gx);
        });
        for_elements(shape, [&](std::size_t i, std::size_t c) {
          const double xhat = (x[i] - mean[c]) * rstd[c], s = batch_statistics ? 1 / n : 0;
          grad_x[i] = w[c] * rstd[c] * (dy[i] - sum_g[c] * s - xhat * sum_gx[c] * s);
          error[i] = std::abs(w[c]) * rstd[c] *
                     (u(n + 6) * s * (all_g[c] + std::abs(xhat) * all_gx[c]) +
                      u(7) * (std::abs(dy[i]) + s * std::abs(sum_g[c]) + s * std::abs(xhat * sum_gx[c])));
        });
        CHECK(num_outside(got.x, grad_x, [&](std::size_t i, double e) { return stored(e, error[i], d.x); }) == 0);
        CHECK(num_outside(got.weight, sum_gx,
                          [&](std::size_t c, double e) { return stored(e, u(n + 6) * all_gx[c], d.weight); }) == 0);
        CHECK(num_outside(got.bias, sum_g, [&](std::size_t c, double e) { return stored(e, u(n + 4) * all_g[c], d.weight); }) ==
              0);
        if (d.x != DType::f32 || shape != kShapes[2]) continue;
        const Device cuda = cuda_device();
        const Tensor grad_x_alone = poisoned(shape, d.x, cuda), weight_alone = poisoned(channels, d.weight, cuda),
                     bias_alone = poisoned(channels, d.weight, cuda);
        const auto alone = [&](const Tensor& out, const Tensor& grad_weight, const Tensor& grad_bias) {
          launch(BatchNormBackward{.grad_out = on_cuda(in.grad_out),
                                   .x = on_cuda(in.x),
                                   .mean = on_cuda(in.mean),
                                   .rstd = on_cuda(in.rstd),
                                   .weight = on_cuda(in.weight),
                                   .batch_statistics = batch_statistics,
                                   .out = out,
                                   .grad_weight = grad_weight,
                                   .grad_bias = grad_bias});
        };
        alone(grad_x_alone, {}, {});
        alone(without_bytes(shape, d.x, cuda), weight_alone, without_bytes(channels, d.weight, cuda));
        alone(without_bytes(shape, d.x, cuda), {}, bias_alone);
        alone(without_bytes(shape, d.x, cuda), {}, {});
        check_same({on_cpu(grad_x_alone), on_cpu(weight_alone), on_cpu(bias_alone)}, got);
      }
    }
  }
}

TEST_CASE("cuda batch_norm_backward: sums of small integers give the CPU's bits") {
  for (const Dtypes& d : kCombinations) {
    for (const Shape& shape : kShapes) {
      INFO(name_of(d, shape));
      const DType accumulator = accumulator_dtype(d.x);
      const Shape channels{shape[1]};
      const BackwardInputs in{small_integers(shape, d.out, 1, 2), small_integers(shape, d.x, 2, 3),
                              small_integers(channels, accumulator, 3, 1), full(channels, 0.5, accumulator),
                              small_integers(channels, d.weight, 5, 2)};
      check_same(backward(in, d, true, true), backward(in, d, true, false));
    }
  }
}
