// Norms of 16-bit tensors: dtypes that go together, field cases, hostile ranges and the promises about bits. How near the
// results are to f64 is tests/autograd/ops/precision_bounds_test.cpp's.
#include <refrain/kernels/norm/norm.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

struct Dtypes {
  DType x, out, weight;
};

const std::vector<Dtypes> kCombinations = {
    {DType::f16, DType::f16, DType::f16},  {DType::bf16, DType::bf16, DType::bf16}, {DType::f32, DType::f16, DType::f32},
    {DType::f32, DType::bf16, DType::f32}, {DType::f16, DType::f16, DType::f32},    {DType::bf16, DType::bf16, DType::f32},
};

struct Norm {
  Tensor x, weight, bias, out, mean, rstd, grad_x, grad_weight, grad_bias;
};

Norm layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, DType out, const Tensor& grad_out, double eps = 1e-5) {
  Shape rows = x.shape();
  rows.erase(rows.size() - 1);
  const Shape channels{x.dim(-1)};
  const DType parameters = weight.defined() ? weight.dtype() : x.dtype();
  Norm n{x,
         weight,
         bias,
         empty(x.shape(), out),
         empty(rows, DType::f32),
         empty(rows, DType::f32),
         empty(x.shape(), x.dtype()),
         empty(channels, parameters),
         empty(channels, parameters)};
  const Tensor scratch = empty({LayerNormBackward::num_scratch(DeviceKind::cpu, numel_of(rows), channels[0])}, DType::f32);
  launch(LayerNormForward{.x = x, .weight = weight, .bias = bias, .eps = eps, .out = n.out, .mean = n.mean, .rstd = n.rstd});
  launch(LayerNormBackward{.grad_out = grad_out,
                           .x = x,
                           .mean = n.mean,
                           .rstd = n.rstd,
                           .weight = weight,
                           .out = n.grad_x,
                           .grad_weight = n.grad_weight,
                           .grad_bias = n.grad_bias,
                           .scratch = scratch});
  return n;
}

Norm batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, DType out, const Tensor& grad_out) {
  const Shape channels{x.dim(1)};
  const DType parameters = weight.dtype();
  Norm n{x,
         weight,
         bias,
         empty(x.shape(), out),
         empty(channels, DType::f32),
         empty(channels, DType::f32),
         empty(x.shape(), x.dtype()),
         empty(channels, parameters),
         empty(channels, parameters)};
  launch(BatchNormStatistics{.x = x, .eps = 1e-5, .momentum = 0.1, .out = n.mean, .rstd = n.rstd, .running_mean = {}, .running_var = {}});
  launch(BatchNormApply{.x = x, .mean = n.mean, .rstd = n.rstd, .weight = weight, .bias = bias, .out = n.out});
  launch(BatchNormBackward{.grad_out = grad_out,
                           .x = x,
                           .mean = n.mean,
                           .rstd = n.rstd,
                           .weight = weight,
                           .batch_statistics = true,
                           .out = n.grad_x,
                           .grad_weight = n.grad_weight,
                           .grad_bias = n.grad_bias});
  return n;
}

Norm random_layer_norm(const Dtypes& d, const Shape& shape) {
  const Shape channels{shape.back()};
  return layer_norm(random_tensor(shape, d.x, 1, -1, 3), random_tensor(channels, d.weight, 2), random_tensor(channels, d.weight, 3), d.out,
                    random_tensor(shape, d.out, 4));
}

// The same values in f32, and results rounded to the 16-bit run's dtypes afterwards: kernels compute in f32 and round once,
// so the bits must be the same.
Tensor as(const Tensor& t, DType dtype) { return tensor_of(t.to_vector<double>(), t.shape(), dtype); }

std::vector<double> alternating(std::size_t count, double mean, double amplitude) {
  std::vector<double> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = mean + (i % 2 == 0 ? amplitude : -amplitude);
  return values;
}

}  // namespace

TEST_CASE("layer_norm: 16-bit results are those of f32, rounded once") {
  for (const Dtypes& d : kCombinations) {
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 31}, Shape{2, 3, 32}, Shape{5, 33}, Shape{0, 7}, Shape{300, 1000}, Shape{700, 5}}) {
      const Norm half = random_layer_norm(d, shape);
      const Tensor grad_out = random_tensor(shape, d.out, 4);
      const Norm wide =
          layer_norm(as(half.x, DType::f32), as(half.weight, DType::f32), as(half.bias, DType::f32), DType::f32, as(grad_out, DType::f32));
      INFO(d.x << " " << d.out << " " << d.weight << " " << concat(shape));
      CHECK(same_bits(half.out, as(wide.out, d.out)));
      CHECK(same_bits(half.mean, wide.mean));
      CHECK(same_bits(half.rstd, wide.rstd));
      CHECK(same_bits(half.grad_x, as(wide.grad_x, d.x)));
      CHECK(same_bits(half.grad_weight, as(wide.grad_weight, d.weight)));
      CHECK(same_bits(half.grad_bias, as(wide.grad_bias, d.weight)));
    }
  }
}

TEST_CASE("batch_norm: 16-bit results are those of f32, rounded once") {
  for (const Dtypes& d : kCombinations) {
    for (const Shape& shape : {Shape{4, 3, 5, 7}, Shape{2, 5, 31}, Shape{33, 40}, Shape{16, 2, 32, 33}}) {
      const Tensor x = random_tensor(shape, d.x, 1, -1, 3), weight = random_tensor({shape[1]}, d.weight, 2),
                   grad_out = random_tensor(shape, d.out, 4);
      const Norm half = batch_norm(x, weight, weight, d.out, grad_out);
      const Norm wide = batch_norm(as(x, DType::f32), as(weight, DType::f32), as(weight, DType::f32), DType::f32, as(grad_out, DType::f32));
      INFO(d.x << " " << d.out << " " << d.weight << " " << concat(shape));
      CHECK(same_bits(half.out, as(wide.out, d.out)));
      CHECK(same_bits(half.rstd, wide.rstd));
      CHECK(same_bits(half.grad_x, as(wide.grad_x, d.x)));
      CHECK(same_bits(half.grad_weight, as(wide.grad_weight, d.weight)));
      CHECK(same_bits(half.grad_bias, as(wide.grad_bias, d.weight)));
    }
  }
}

TEST_CASE("layer_norm: 16-bit values whose squares or sums overflow are normalised") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const auto normalised = [&](const std::vector<double>& values) {
      const Shape shape{1, std::int64_t(values.size())};
      return layer_norm(tensor_of(values, shape, dtype), {}, {}, dtype, zeros(shape, dtype)).out.to_vector<double>();
    };
    CHECK(normalised({1000, -1000, 1000, -1000}) == std::vector<double>{1, -1, 1, -1});  // 1000² > 65,504
    // The sum, 102,400, is beyond f16; var / (var + 1e-5) rounds to 1 in 16 bits.
    CHECK(normalised(alternating(1024, 100, 1)) == alternating(1024, 0, 1));
    CHECK(normalised(alternating(1000, 0, 65504)) == alternating(1000, 0, 1));
    CHECK(normalised(alternating(64, 60000, 2048)) == alternating(64, 0, 1));
  }
}

TEST_CASE("layer_norm: f16 subnormals are normalised like other numbers") {
  // 2^-24, the least f16, is an ordinary f32.
  const std::vector<double> values = alternating(64, 0, 0x1p-24);
  const Tensor x = tensor_of(values, {1, 64}, DType::f16);
  CHECK(layer_norm(x, {}, {}, DType::f16, zeros({1, 64}, DType::f16), 0).out.to_vector<double>() == alternating(64, 0, 1));
}

TEST_CASE("layer_norm: infinities and NaN of a 16-bit row make that row NaN and no other") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const double bad : {HUGE_VAL, -HUGE_VAL, std::nan("")}) {
      std::vector<double> values = random_values(3 * 37, 1);
      values[37 + 5] = bad;
      const Norm n = layer_norm(tensor_of(values, {3, 37}, dtype), {}, {}, dtype, full({3, 37}, 1, dtype));
      const auto out = n.out.to_vector<double>(), grad = n.grad_x.to_vector<double>();
      for (std::size_t i = 0; i < out.size(); ++i) {
        CHECK(std::isnan(out[i]) == (i / 37 == 1));
        CHECK(std::isnan(grad[i]) == (i / 37 == 1));
      }
    }
  }
}

TEST_CASE("layer_norm: sums of parameter gradients do not stop growing in 16 bits") {
  // 4,096 rows of 1 stop at 256 when they are added in bf16, at 2,048 in f16.
  for (const DType dtype : {DType::f16, DType::bf16}) {
    const Norm n = layer_norm(tensor_of(alternating(4096 * 2, 0, 1), {4096, 2}, dtype), {}, {}, dtype, full({4096, 2}, 1, dtype));
    CHECK(n.grad_bias.to_vector<double>() == std::vector<double>{4096, 4096});
  }
}

TEST_CASE("layer_norm: a rebuilt 16-bit output has the bits of the first") {
  for (const Dtypes& d : kCombinations) {
    const Norm n = random_layer_norm(d, {65, 77});
    const Tensor again = empty({65, 77}, d.out);
    launch(LayerNormRebuild{.x = n.x, .mean = n.mean, .rstd = n.rstd, .weight = n.weight, .bias = n.bias, .out = again});
    CHECK(same_bits(again, n.out));
  }
}

TEST_CASE("layer_norm and batch_norm: 16-bit results are the same on 1, 2 and 4 threads") {
  for (const Dtypes& d : kCombinations) {
    CHECK(same_on_all_threads([&] {
      const Norm n = random_layer_norm(d, {1576, 96});
      const Tensor images = random_tensor({16, 24, 14, 14}, d.x, 5), weight = random_tensor({24}, d.weight, 6);
      const Norm b = batch_norm(images, weight, weight, d.out, random_tensor({16, 24, 14, 14}, d.out, 7));
      return std::vector<Tensor>{n.out, n.mean, n.rstd, n.grad_x, n.grad_weight, n.grad_bias, b.out, b.grad_x, b.grad_weight, b.grad_bias};
    }));
  }
}

TEST_CASE("layer_norm: 16-bit tensors at odd addresses, nothing written outside") {
  for (const Dtypes& d : kCombinations) {
    for (std::int64_t channels : {1, 7, 15, 17, 33, 100}) {
      const Norm expected = random_layer_norm(d, {3, channels});
      const Guarded x(expected.x), weight(expected.weight), bias(expected.bias), grad_out(random_tensor({3, channels}, d.out, 4));
      const Guarded out({3, channels}, d.out), mean({3}, DType::f32), rstd({3}, DType::f32), grad_x({3, channels}, d.x),
          grad_weight({channels}, d.weight), grad_bias({channels}, d.weight);
      const Tensor scratch = empty({LayerNormBackward::num_scratch(DeviceKind::cpu, 3, channels)}, DType::f32);
      launch(LayerNormForward{.x = x.tensor,
                              .weight = weight.tensor,
                              .bias = bias.tensor,
                              .eps = 1e-5,
                              .out = out.tensor,
                              .mean = mean.tensor,
                              .rstd = rstd.tensor});
      launch(LayerNormBackward{.grad_out = grad_out.tensor,
                               .x = x.tensor,
                               .mean = mean.tensor,
                               .rstd = rstd.tensor,
                               .weight = weight.tensor,
                               .out = grad_x.tensor,
                               .grad_weight = grad_weight.tensor,
                               .grad_bias = grad_bias.tensor,
                               .scratch = scratch});
      for (const Guarded* g : {&x, &weight, &bias, &grad_out, &out, &mean, &rstd, &grad_x, &grad_weight, &grad_bias}) CHECK(g->is_intact());
      CHECK(same_bits(out.tensor, expected.out));
      CHECK(same_bits(grad_x.tensor, expected.grad_x));
      CHECK(same_bits(grad_weight.tensor, expected.grad_weight));
    }
  }
}

TEST_CASE("layer_norm: dtypes that do not go together are named") {
  const Tensor f16 = zeros({2, 3}, DType::f16), f32 = zeros({2, 3}, DType::f32), bf16_weight = zeros({3}, DType::bf16);
  const auto run = [](const Tensor& x, const Tensor& weight, const Tensor& out) {
    return message_of(
        [&] { launch(LayerNormForward{.x = x, .weight = weight, .bias = {}, .eps = 0, .out = out, .mean = {}, .rstd = {}}); });
  };
  CHECK(run(f16, bf16_weight, f16) ==
        "layer_norm: x, out and weight must be of one dtype, or out 16-bit, weight f32 and x either, got f16, f16 and bf16");
  CHECK(run(f16, {}, f32) != "");
  CHECK(run(f32, {}, zeros({2, 3}, DType::f64)) != "");
  CHECK(run(f32, zeros({3}, DType::f16), f32) != "");
}

TEST_CASE("batch_norm: running statistics of 16-bit images are kept in f32 or in the images' dtype") {
  const Tensor x = random_tensor({4, 2, 5, 5}, DType::bf16, 1, 0, 2);
  const auto moved = [&](DType dtype) {
    const Tensor mean = full({2}, 0.25, dtype), var = full({2}, 2, dtype), out = empty({2}, DType::f32);
    launch(BatchNormStatistics{.x = x, .eps = 1e-5, .momentum = 0.1, .out = out, .rstd = {}, .running_mean = mean, .running_var = var});
    return std::vector<Tensor>{mean, var};
  };
  const auto wide = moved(DType::f32), narrow = moved(DType::bf16);
  for (std::size_t i = 0; i < 2; ++i) CHECK(same_bits(narrow[i], as(wide[i], DType::bf16)));
  CHECK(message_of([&] { moved(DType::f16); }) == "batch_norm_statistics: running_mean must be bf16 like x, or f32, got f16");
}
