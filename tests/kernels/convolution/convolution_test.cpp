#include <refrain/core/view.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/kernels/convolution/convolution.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

struct Conv {
  Shape x, weight;
  std::int64_t stride, padding;
  ConvolutionGeometry geometry() const { return ConvolutionGeometry::of("test", x, weight, stride, padding); }
};

Tensor forward(const Conv& c, const Tensor& x, const Tensor& weight, const Tensor& bias, GemmEngine engine) {
  const ConvolutionGeometry g = ConvolutionGeometry::of("test", x.shape(), weight.shape(), c.stride, c.padding);
  const Tensor out = full({g.B, g.O, g.Y(), g.X()}, std::nan(""), x.dtype());
  launch(Conv2dForward{.x = x,
                       .weight = weight,
                       .bias = bias,
                       .out = out,
                       .scratch = empty({g.scratch_size()}, x.dtype()),
                       .stride = c.stride,
                       .padding = c.padding,
                       .engine = engine});
  return out;
}

std::vector<Tensor> backward(const Conv& c, const Tensor& grad, const Tensor& x, const Tensor& weight, GemmEngine engine, DType weights) {
  const ConvolutionGeometry g = c.geometry();
  const Tensor grad_x = full(x.shape(), std::nan(""), x.dtype()), grad_weight = full(weight.shape(), std::nan(""), weights);
  const Tensor grad_bias = full({g.O}, std::nan(""), weights);
  const DType sums = accumulator_dtype(x.dtype());
  launch(Conv2dBackwardInput{.grad_out = grad, .weight = weight, .out = grad_x, .scratch = empty({g.input_scratch_size(x.dtype())}, sums),
                             .stride = c.stride, .padding = c.padding, .engine = engine});
  launch(Conv2dBackwardWeight{.grad_out = grad,
                              .x = x,
                              .out = grad_weight,
                              .scratch = empty({g.weight_scratch_size()}, x.dtype()),
                              .sums = empty({g.weight_sums_size(weights)}, sums),
                              .stride = c.stride,
                              .padding = c.padding,
                              .engine = engine});
  launch(Conv2dBackwardBias{.grad_out = grad, .out = grad_bias});
  return {grad_x, grad_weight, grad_bias};
}

// The definition, in double. Calls f(index of out, of x, of weight) for every product.
template <class F>
void for_products(const ConvolutionGeometry& g, F&& f) {
  for (std::int64_t b = 0; b < g.B; ++b)
    for (std::int64_t o = 0; o < g.O; ++o)
      for (std::int64_t y = 0; y < g.Y(); ++y)
        for (std::int64_t x = 0; x < g.X(); ++x)
          for (std::int64_t c = 0; c < g.C; ++c)
            for (std::int64_t p = 0; p < g.P; ++p)
              for (std::int64_t q = 0; q < g.Q; ++q) {
                const std::int64_t h = y * g.stride + p - g.padding, w = x * g.stride + q - g.padding;
                if (h < 0 || h >= g.H || w < 0 || w >= g.W) continue;
                f(std::size_t(((b * g.O + o) * g.Y() + y) * g.X() + x), std::size_t(((b * g.C + c) * g.H + h) * g.W + w),
                  std::size_t(((o * g.C + c) * g.P + p) * g.Q + q));
              }
}

std::vector<GemmEngine> engines() {
  std::vector<GemmEngine> engines{GemmEngine::builtin, GemmEngine::eigen};
  if (has_onednn()) engines.push_back(GemmEngine::onednn);
  return engines;
}

const std::vector<Conv>& cases() {
  static const std::vector<Conv> list = {
      {{3, 3, 9, 8}, {5, 3, 3, 3}, 1, 1},   {{2, 4, 11, 7}, {33, 4, 3, 2}, 2, 1}, {{1, 1, 5, 5}, {1, 1, 5, 5}, 1, 0},
      {{2, 1, 1, 33}, {2, 1, 1, 3}, 1, 1},  {{2, 2, 4, 4}, {3, 2, 2, 2}, 5, 2},   {{1, 2, 31, 32}, {31, 2, 1, 1}, 3, 0},
      {{70, 8, 16, 16}, {4, 8, 5, 5}, 1, 2},    // several chunks of whole images
      {{2, 3, 300, 300}, {2, 3, 7, 7}, 1, 3},   // several chunks of rows of one image
  };
  return list;
}

}  // namespace

TEST_CASE("conv2d: forward and gradients equal the definition, in chunks of images and of rows") {
  for (const Conv& c : cases()) {
    const ConvolutionGeometry g = c.geometry();
    const Tensor x = random_tensor(c.x, DType::f32, 1), weight = random_tensor(c.weight, DType::f32, 2),
                 bias = random_tensor({g.O}, DType::f32, 3);
    const Tensor grad = random_tensor({g.B, g.O, g.Y(), g.X()}, DType::f32, 4);
    const std::vector<double> xs = x.to_vector<double>(), ws = weight.to_vector<double>(), bs = bias.to_vector<double>(),
                              gs = grad.to_vector<double>();
    std::vector<double> out(gs.size()), grad_x(xs.size()), grad_weight(ws.size()), grad_bias(bs.size());
    const std::size_t plane = std::size_t(g.Y() * g.X());
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = bs[i / plane % bs.size()];
      grad_bias[i / plane % bs.size()] += gs[i];
    }
    for_products(g, [&](std::size_t o, std::size_t i, std::size_t w) {
      out[o] += xs[i] * ws[w];
      grad_x[i] += gs[o] * ws[w];
      grad_weight[w] += gs[o] * xs[i];
    });
    for (GemmEngine engine : engines()) {
      INFO("x " << c.x << " weight " << c.weight << " stride " << c.stride << " padding " << c.padding << " engine " << int(engine));
      CHECK(error_against(forward(c, x, weight, bias, engine), out) < 2e-6);
      const std::vector<Tensor> grads = backward(c, grad, x, weight, engine, DType::f32);
      CHECK(error_against(grads[0], grad_x) < 2e-6);
      CHECK(error_against(grads[1], grad_weight) < 2e-6);
      CHECK(error_against(grads[2], grad_bias) < 2e-6);
    }
  }
}

TEST_CASE("conv2d: bits are equal on 1, 2 and 4 threads") {
  for (std::size_t i : {0, 6, 7}) {
    const Conv& c = cases()[i];
    const ConvolutionGeometry g = c.geometry();
    for (GemmEngine engine : engines()) {
      CHECK(same_on_all_threads([&] {
        const Tensor x = random_tensor(c.x, DType::f32, 1), weight = random_tensor(c.weight, DType::f32, 2),
                     bias = random_tensor({g.O}, DType::f32, 3);
        std::vector<Tensor> all = backward(c, random_tensor({g.B, g.O, g.Y(), g.X()}, DType::f32, 4), x, weight, engine, DType::f32);
        all.push_back(forward(c, x, weight, bias, engine));
        return all;
      }));
    }
  }
}

TEST_CASE("conv2d: an image's bits do not depend on the batch around it") {
  const Conv& c = cases()[6];
  const Tensor x = random_tensor(c.x, DType::f32, 1), weight = random_tensor(c.weight, DType::f32, 2),
               bias = random_tensor({c.weight[0]}, DType::f32, 3);
  for (GemmEngine engine : engines()) {
    const Tensor all = forward(c, x, weight, bias, engine);
    for (std::int64_t image : {0, 33, 69}) {
      const Tensor one = forward(c, contiguous_values(view::slice(x, 0, image, image + 1)), weight, bias, engine);
      CHECK(same_bits(one, view::slice(all, 0, image, image + 1)));
    }
  }
}

namespace {

Tensor embed(const Tensor& x, const Tensor& weight, const Tensor& bias, GemmEngine engine) {
  const PatchGeometry g = PatchGeometry::of("test", x.shape(), weight.shape());
  const Tensor out = full({g.B, g.patches(), g.D}, std::nan(""), weight.dtype());
  launch(PatchEmbeddingForward{
      .x = x, .weight = weight, .bias = bias, .out = out, .scratch = empty({g.scratch_size()}, weight.dtype()), .engine = engine});
  return out;
}

std::vector<Tensor> embed_backward(const Tensor& grad, const Tensor& x, const Tensor& weight, GemmEngine engine, DType weights) {
  const PatchGeometry g = PatchGeometry::of("test", x.shape(), weight.shape());
  const Tensor grad_x = full(x.shape(), std::nan(""), x.dtype()), grad_weight = full(weight.shape(), std::nan(""), weights);
  const Tensor grad_bias = full({g.D}, std::nan(""), weights);
  const DType sums = accumulator_dtype(grad.dtype());
  launch(PatchEmbeddingBackwardInput{
      .grad_out = grad, .weight = weight, .out = grad_x, .scratch = empty({g.scratch_size()}, sums), .engine = engine});
  launch(PatchEmbeddingBackwardWeight{.grad_out = grad, .x = x, .out = grad_weight, .grad_bias = grad_bias,
                                      .scratch = empty({g.scratch_size()}, grad.dtype()),
                                      .sums = empty({g.weight_sums_size(grad_weight.dtype())}, sums), .engine = engine});
  return {grad_x, grad_weight, grad_bias};
}

const std::vector<std::pair<Shape, Shape>>& patch_cases() {
  static const std::vector<std::pair<Shape, Shape>> list = {{{2, 3, 12, 8}, {7, 3, 4, 2}}, {{1, 1, 28, 28}, {64, 1, 7, 7}},
                                                            {{130, 3, 64, 64}, {24, 3, 16, 16}}};  // the last in several chunks
  return list;
}

}  // namespace

TEST_CASE("patch_embedding: forward and gradients equal the definition") {
  for (const auto& [x_shape, weight_shape] : patch_cases()) {
    const PatchGeometry g = PatchGeometry::of("test", x_shape, weight_shape);
    const Tensor x = random_tensor(x_shape, DType::f64, 1), weight = random_tensor(weight_shape, DType::f64, 2),
                 bias = random_tensor({g.D}, DType::f64, 3);
    const Tensor grad = random_tensor({g.B, g.patches(), g.D}, DType::f64, 4);
    const Tensor out = embed(x, weight, bias, GemmEngine::automatic);
    const std::vector<Tensor> grads = embed_backward(grad, x, weight, GemmEngine::automatic, DType::f64);
    const std::vector<double> biases = bias.to_vector<double>();
    std::vector<double> expected(std::size_t(out.numel())), grad_x(std::size_t(x.numel())), grad_weight(std::size_t(weight.numel())),
        grad_bias(std::size_t(g.D));
    const std::vector<double> xs = x.to_vector<double>(), ws = weight.to_vector<double>(), gs = grad.to_vector<double>();
    for (std::int64_t r = 0; r < g.rows(); ++r) {
      const std::int64_t b = r / g.patches(), py = r % g.patches() / (g.W / g.Q), px = r % g.patches() % (g.W / g.Q);
      for (std::int64_t d = 0; d < g.D; ++d) {
        const std::size_t at = std::size_t(r * g.D + d);
        expected[at] = biases[std::size_t(d)];
        grad_bias[std::size_t(d)] += gs[at];
        for (std::int64_t w = 0; w < g.window(); ++w) {
          const std::int64_t c = w / (g.P * g.Q), p = w / g.Q % g.P, q = w % g.Q;
          const std::size_t pixel = std::size_t(((b * g.C + c) * g.H + py * g.P + p) * g.W + px * g.Q + q),
                            tap = std::size_t(d * g.window() + w);
          expected[at] += xs[pixel] * ws[tap];
          grad_x[pixel] += gs[at] * ws[tap];
          grad_weight[tap] += gs[at] * xs[pixel];
        }
      }
    }
    CHECK(error_against(out, expected) < 1e-13);
    CHECK(error_against(grads[0], grad_x) < 1e-13);
    CHECK(error_against(grads[1], grad_weight) < 1e-13);
    CHECK(error_against(grads[2], grad_bias) < 1e-13);
  }
}

TEST_CASE("patch_embedding: bits are equal on 1, 2 and 4 threads and do not depend on the batch") {
  for (GemmEngine engine : engines()) {
    for (const auto& shapes : patch_cases()) {
      const PatchGeometry g = PatchGeometry::of("test", shapes.first, shapes.second);
      const Tensor x = random_tensor(shapes.first, DType::f32, 1), weight = random_tensor(shapes.second, DType::f32, 2),
                   bias = random_tensor({g.D}, DType::f32, 3);
      const Tensor grad = random_tensor({g.B, g.patches(), g.D}, DType::f32, 4);
      CHECK(same_on_all_threads([&] {
        std::vector<Tensor> all = embed_backward(grad, x, weight, engine, DType::f32);
        all.push_back(embed(x, weight, bias, engine));
        return all;
      }));
      const Tensor all = embed(x, weight, bias, engine);
      const Tensor last = embed(contiguous_values(view::slice(x, 0, g.B - 1, g.B)), weight, bias, engine);
      CHECK(same_bits(last, view::slice(all, 0, g.B - 1, g.B)));
    }
  }
}

namespace {

Tensor rounded(const Tensor& t, DType dtype) {
  const Tensor out = empty(t.shape(), dtype);
  launch(Convert{.x = t, .out = out});
  return out;
}

// A sum in double with what bounds the error of the same sum in f32, in any order, rounded once when it is stored:
// n additions of 2^-24 of the magnitudes each, then u of the result (2^-11 f16, 2^-8 bf16, 2^-24 f32).
struct Sums {
  explicit Sums(std::int64_t n) : value(std::size_t(n)), magnitude(std::size_t(n)), count(std::size_t(n)) {}
  void add(std::size_t i, double term) {
    value[i] += term;
    magnitude[i] += std::abs(term);
    ++count[i];
  }
  // Largest error in units of its bound.
  double error(const Tensor& got) const {
    const double u = got.dtype() == DType::f16 ? 0x1p-11 : got.dtype() == DType::bf16 ? 0x1p-8 : 0x1p-24;
    const std::vector<double> values = got.to_vector<double>();
    double worst = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double sum_error = double(count[i] + 8) * (0x1p-24 * magnitude[i] + 0x1p-126);
      const double difference = std::abs(values[i] - value[i]);
      worst =
          std::isnan(difference) ? HUGE_VAL : std::max(worst, difference / (u * (std::abs(value[i]) + sum_error) + sum_error + 0x1p-25));
    }
    return worst;
  }
  std::vector<double> value, magnitude;
  std::vector<std::int64_t> count;
};

}  // namespace

TEST_CASE("conv2d: 16-bit forward and gradients are f32 sums rounded once, weight gradients in f32 too") {
  for (const Conv& c : cases()) {
    const ConvolutionGeometry g = c.geometry();
    for (auto [dtype, weights] :
         std::vector<std::pair<DType, DType>>{{DType::bf16, DType::bf16}, {DType::bf16, DType::f32}, {DType::f16, DType::f16}}) {
      const Tensor x = rounded(random_tensor(c.x, DType::f32, 1), dtype), weight = rounded(random_tensor(c.weight, DType::f32, 2), dtype);
      const Tensor bias = rounded(random_tensor({g.O}, DType::f32, 3), weights),
                   grad = rounded(random_tensor({g.B, g.O, g.Y(), g.X()}, DType::f32, 4), dtype);
      const std::vector<double> xs = x.to_vector<double>(), ws = weight.to_vector<double>(), bs = bias.to_vector<double>(),
                                gs = grad.to_vector<double>();
      Sums out(grad.numel()), grad_x(x.numel()), grad_weight(weight.numel()), grad_bias(g.O);
      const std::size_t plane = std::size_t(g.Y() * g.X());
      for (std::size_t i = 0; i < gs.size(); ++i) {
        out.add(i, bs[i / plane % bs.size()]);
        grad_bias.add(i / plane % bs.size(), gs[i]);
      }
      for_products(g, [&](std::size_t o, std::size_t i, std::size_t w) {
        out.add(o, xs[i] * ws[w]);
        grad_x.add(i, gs[o] * ws[w]);
        grad_weight.add(w, gs[o] * xs[i]);
      });
      for (GemmEngine engine : {GemmEngine::builtin, GemmEngine::automatic}) {
        INFO("x " << c.x << " weight " << c.weight << " stride " << c.stride << " padding " << c.padding << " engine " << int(engine) << " "
                  << dtype);
        CHECK(out.error(forward(c, x, weight, bias, engine)) <= 1);
        const std::vector<Tensor> grads = backward(c, grad, x, weight, engine, weights);
        CHECK(grad_x.error(grads[0]) <= 1);
        CHECK(grad_weight.error(grads[1]) <= 1);
        CHECK(grad_bias.error(grads[2]) <= 1);
      }
    }
  }
}

TEST_CASE("conv2d and patch_embedding: 16-bit bits are equal on 1, 2 and 4 threads") {
  for (DType weights : {DType::bf16, DType::f32}) {
    const Conv& c = cases()[6];
    const ConvolutionGeometry g = c.geometry();
    const auto values = [](const Shape& shape, std::uint64_t seed) { return rounded(random_tensor(shape, DType::f32, seed), DType::bf16); };
    CHECK(same_on_all_threads([&] {
      std::vector<Tensor> all =
          backward(c, values({g.B, g.O, g.Y(), g.X()}, 4), values(c.x, 1), values(c.weight, 2), GemmEngine::automatic, weights);
      all.push_back(forward(c, values(c.x, 1), values(c.weight, 2), values({g.O}, 3), GemmEngine::automatic));
      return all;
    }));
    const auto& [x_shape, weight_shape] = patch_cases()[2];
    const PatchGeometry p = PatchGeometry::of("test", x_shape, weight_shape);
    const Tensor x = random_tensor(x_shape, DType::f32, 1), weight = values(weight_shape, 2), grad = values({p.B, p.patches(), p.D}, 4);
    CHECK(same_on_all_threads([&] {
      std::vector<Tensor> all = embed_backward(grad, x, weight, GemmEngine::automatic, weights);
      all.push_back(embed(x, weight, Tensor(), GemmEngine::automatic));
      return all;
    }));
  }
}

TEST_CASE("patch_embedding: pixels of any dtype are rounded as they are gathered, as if the image had been") {
  const auto& [x_shape, weight_shape] = patch_cases()[2];
  const PatchGeometry g = PatchGeometry::of("test", x_shape, weight_shape);
  for (DType dtype : {DType::f16, DType::bf16}) {
    const Tensor weight = rounded(random_tensor(weight_shape, DType::f32, 2), dtype), bias = random_tensor({g.D}, DType::f32, 3);
    const Tensor grad = rounded(random_tensor({g.B, g.patches(), g.D}, DType::f32, 4), dtype);
    for (DType pixels : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      const Tensor x = rounded(random_tensor(x_shape, DType::f32, 1), pixels), same = rounded(rounded(x, DType::f32), dtype);
      CHECK(same_bits(embed(x, weight, bias, GemmEngine::automatic), embed(same, weight, bias, GemmEngine::automatic)));
      const std::vector<Tensor> grads = embed_backward(grad, x, weight, GemmEngine::automatic, DType::f32);
      const std::vector<Tensor> expected = embed_backward(grad, same, weight, GemmEngine::automatic, DType::f32);
      CHECK(grads[0].dtype() == pixels);
      if (!is_16_bit(pixels)) CHECK(same_bits(rounded(grads[0], dtype), expected[0]));  // the only rounding is to the pixels' dtype
      CHECK(same_bits(grads[1], expected[1]));
      CHECK(same_bits(grads[2], expected[2]));
      // Rounded once from sums over all chunks.
      CHECK(same_bits(embed_backward(grad, x, weight, GemmEngine::automatic, dtype)[1], rounded(grads[1], dtype)));
    }
  }
}

TEST_CASE("patch_embedding: 16-bit forward and gradients are f32 sums rounded once") {
  for (const auto& [x_shape, weight_shape] : {patch_cases()[0], patch_cases()[1]}) {
    const PatchGeometry g = PatchGeometry::of("test", x_shape, weight_shape);
    for (DType dtype : {DType::f16, DType::bf16}) {
      const Tensor x = rounded(random_tensor(x_shape, DType::f32, 1), dtype),
                   weight = rounded(random_tensor(weight_shape, DType::f32, 2), dtype);
      const Tensor bias = random_tensor({g.D}, DType::f32, 3), grad = rounded(random_tensor({g.B, g.patches(), g.D}, DType::f32, 4), dtype);
      const std::vector<double> xs = x.to_vector<double>(), ws = weight.to_vector<double>(), gs = grad.to_vector<double>(),
                                bs = bias.to_vector<double>();
      Sums out(grad.numel()), grad_x(x.numel()), grad_weight(weight.numel()), grad_bias(g.D);
      for (std::int64_t r = 0; r < g.rows(); ++r) {
        const std::int64_t b = r / g.patches(), py = r % g.patches() / (g.W / g.Q), px = r % g.patches() % (g.W / g.Q);
        for (std::int64_t d = 0; d < g.D; ++d) {
          const std::size_t at = std::size_t(r * g.D + d);
          out.add(at, bs[std::size_t(d)]);
          grad_bias.add(std::size_t(d), gs[at]);
          for (std::int64_t w = 0; w < g.window(); ++w) {
            const std::int64_t c = w / (g.P * g.Q), p = w / g.Q % g.P, q = w % g.Q;
            const std::size_t pixel = std::size_t(((b * g.C + c) * g.H + py * g.P + p) * g.W + px * g.Q + q),
                              tap = std::size_t(d * g.window() + w);
            out.add(at, xs[pixel] * ws[tap]);
            grad_x.add(pixel, gs[at] * ws[tap]);
            grad_weight.add(tap, gs[at] * xs[pixel]);
          }
        }
      }
      for (DType weights : {dtype, DType::f32}) {
        CHECK(out.error(embed(x, weight, bias, GemmEngine::automatic)) <= 1);
        const std::vector<Tensor> grads = embed_backward(grad, x, weight, GemmEngine::automatic, weights);
        CHECK(grad_x.error(grads[0]) <= 1);
        CHECK(grad_weight.error(grads[1]) <= 1);
        CHECK(grad_bias.error(grads[2]) <= 1);
      }
    }
  }
}
