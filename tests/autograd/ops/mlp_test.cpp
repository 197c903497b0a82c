// The MLP whose hidden values exist a chunk at a time, against the layers it is made of.
#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/ops/activation.h>
#include <refrain/autograd/ops/dropout.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/linear.h>
#include <refrain/autograd/ops/mlp.h>
#include <refrain/autograd/precision.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/kernels/kernel.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/gradcheck.h>
#include <refrain/tests/support/half.h>
#include <refrain/tests/support/values.h>

using namespace refrain;
using testing::gradcheck;
using testing::test_values;

namespace {

struct Operands {
  Tensor x, weight1, bias1, weight2, bias2;
  std::vector<Tensor> all() const { return {x, weight1, bias1, weight2, bias2}; }
};

Operands operands(const Shape& x, std::int64_t hidden, std::int64_t out, DType dtype, DType parameters, bool has_bias = true,
                  const Device& device = Device::cpu()) {
  int salt = 0;
  const auto make = [&](const Shape& shape, DType of) {
    const Tensor t = empty(shape, of, device);
    ++salt;
    if (device.has_bytes()) copy_values(t, test_values(shape, of, salt));
    set_requires_grad(t);
    return t;
  };
  const std::int64_t in = x[x.size() - 1];
  return {make(x, dtype), make({hidden, in}, parameters), has_bias ? make({hidden}, parameters) : Tensor(), make({out, hidden}, parameters),
          has_bias ? make({out}, parameters) : Tensor()};
}

enum class How { layers, chunked, chunked_in_region };

Tensor forward(const Operands& in, const ChunkedMlpOptions& options, How how) {
  // As the third stage of a model, on samples that are not the global batch's first.
  seed_random(7);
  set_random_position(3, 5);
  const StageScope stage(2);
  const auto layers = [&](const Tensor& x) {
    return linear(dropout(gelu(linear(x, in.weight1, in.bias1), options.gelu), options.dropout), in.weight2, in.bias2);
  };
  const auto chunked = [&](const Tensor& x) { return chunked_mlp(x, in.weight1, in.bias1, in.weight2, in.bias2, options); };
  if (how == How::layers) return layers(in.x);
  return how == How::chunked ? chunked(in.x) : checkpoint([chunked](const Tensor& x) { return square(chunked(x * 1.0)); }, in.x);
}

// The result and all gradients.
std::vector<Tensor> run(const Operands& in, const ChunkedMlpOptions& options, How how) {
  for (const Tensor& t : in.all()) {
    if (t.defined()) clear_grad(t);
  }
  std::vector<Tensor> results{forward(in, options, how)};
  const Tensor grad_out = empty_like(results[0]);
  if (grad_out.has_bytes()) copy_values(grad_out, test_values(grad_out.shape(), grad_out.dtype(), 9));
  backward(results[0], {.grad_out = grad_out});
  for (const Tensor& t : in.all()) results.push_back(t.defined() ? grad_of(t) : Tensor());
  return results;
}

double furthest(const Tensor& a, const Tensor& b) {
  REQUIRE(a.shape() == b.shape());
  REQUIRE(a.dtype() == b.dtype());
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::isnan(x[i]) ? HUGE_VAL : std::abs(x[i] - y[i]));
  return worst;
}

}  // namespace

TEST_CASE("mlp: gradients match differences for both forms of GELU and every cut") {
  for (const GeluForm form : {GeluForm::erf, GeluForm::tanh}) {
    for (const std::int64_t chunk : {0, 1, 2, 5, 6, 100}) {
      gradcheck(
          [=](auto in) {
            seed_random(3);
            return chunked_mlp(in[0], in[1], in[2], in[3], in[4], {.gelu = form, .dropout = 0.3, .chunk_rows = chunk});
          },
          {test_values({2, 3, 4}, DType::f64, 1), test_values({7, 4}, DType::f64, 2), test_values({7}, DType::f64, 3),
           test_values({3, 7}, DType::f64, 4), test_values({3}, DType::f64, 5)});
      gradcheck([=](auto in) { return chunked_mlp(in[0], in[1], Tensor(), in[2], Tensor(), {.gelu = form, .chunk_rows = chunk}); },
                {view::transpose(test_values({4, 3}, DType::f64, 1), 0, 1), test_values({5, 4}, DType::f64, 2),
                 test_values({1, 5}, DType::f64, 4)});
    }
  }
}

TEST_CASE("mlp: the result and the gradient of x have the bits of the layers, dropout included") {
  struct Size {
    Shape x;
    std::int64_t hidden, out;
  };
  for (const Size& size :
       std::vector<Size>{{{1}, 1, 1}, {{5}, 7, 3}, {{3, 31, 16}, 64, 16}, {{2, 5, 3, 8}, 33, 5}, {{50, 96}, 200, 96}, {{0, 4}, 8, 4}}) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      for (const bool is_mixed : {false, true}) {
        if (is_mixed && !is_16_bit(dtype)) continue;
        const DType parameters = is_mixed ? DType::f32 : dtype;
        const bool has_bias = size.hidden != 33;
        const Operands in = operands(size.x, size.hidden, size.out, dtype, parameters, has_bias);
        const std::int64_t rows = numel_of(size.x) / size.x[size.x.size() - 1];
        const std::vector<Tensor> layers = run(in, {.dropout = 0.3}, How::layers);
        for (const std::int64_t chunk : {0, 1, 7, 24, 1000}) {
          INFO(dtype << " " << size.x << " chunks of " << chunk);
          const std::vector<Tensor> got = run(in, {.dropout = 0.3, .chunk_rows = chunk}, How::chunked);
          CHECK(same_bits(got[0], layers[0]));
          CHECK(same_bits(got[1], layers[1]));
          for (std::size_t i = 2; i < got.size(); ++i) {
            if (!got[i].defined()) continue;
            if (chunk == 0 || chunk >= rows) {
              CHECK(same_bits(got[i], layers[i]));
              continue;
            }
            // Two sums of the same terms in other orders, each off by (rows + 2) roundings of the sum of their magnitudes
            // and a last one: a term is at most a gradient (below 1.13·out/0.7) times a value (below in + 1, over 0.7).
            const double width = double(size.x[size.x.size() - 1]), terms = double(rows) * 1.7 * double(size.out) * 1.5 * (width + 1);
            const double wide = roundoff_of(dtype == DType::f64 ? dtype : DType::f32);
            CHECK(furthest(got[i], layers[i]) <= terms * (2 * double(rows + 2) * wide + 2 * roundoff_of(parameters)));
          }
        }
      }
    }
  }
}

TEST_CASE("mlp: frozen operands get no gradient and the others the same bits") {
  const Operands in = operands({3, 5, 4}, 6, 4, DType::f32, DType::f32);
  const ChunkedMlpOptions options{.dropout = 0.2, .chunk_rows = 4};
  const std::vector<Tensor> all = run(in, options, How::chunked);
  for (int wanted = 1; wanted < 31; ++wanted) {
    std::vector<Tensor> parts;
    for (const Tensor& t : in.all()) {
      parts.push_back(clone(t.without_autograd()));
      if (wanted & (1 << (parts.size() - 1))) set_requires_grad(parts.back());
    }
    const std::vector<Tensor> some = run({parts[0], parts[1], parts[2], parts[3], parts[4]}, options, How::chunked);
    INFO(wanted);
    for (std::size_t i = 0; i < 5; ++i) {
      CHECK(some[i + 1].defined() == bool(wanted & (1 << i)));
      if (some[i + 1].defined()) CHECK(same_bits(some[i + 1], all[i + 1]));
    }
  }
}

TEST_CASE("mlp: a micro-batch draws the masks of its samples in the global batch") {
  const Operands whole = operands({6, 5, 4}, 9, 4, DType::f32, DType::f32);
  const auto forward_from = [&](std::int64_t begin, std::int64_t end, std::int64_t chunk) {
    seed_random(1);
    set_random_position(2, begin);
    const StageScope stage(1);
    const Tensor x = view::slice(whole.x.without_autograd(), 0, begin, end);
    return chunked_mlp(x, whole.weight1, whole.bias1, whole.weight2, whole.bias2, {.dropout = 0.5, .chunk_rows = chunk});
  };
  const Tensor all = detach(forward_from(0, 6, 7));
  CHECK(same_bits(detach(forward_from(2, 5, 4)), view::slice(all, 0, 2, 5)));
}

TEST_CASE("mlp: the same bits on 1, 2 and 4 threads") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Operands in = operands({4, 100, 64}, 256, 64, dtype, dtype);
    CHECK(same_on_all_threads([&] { return run(in, {.dropout = 0.1, .chunk_rows = 150}, How::chunked); }));
  }
}

TEST_CASE("mlp: in a mixed mode it does what the layers do") {
  for (const Precision mode : {Precision::f16_mixed, Precision::bf16_mixed}) {
    const Operands in = operands({4, 10, 16}, 64, 16, DType::f32, DType::f32);
    const PrecisionScope scope(mode);
    const std::vector<Tensor> layers = run(in, {.dropout = 0.1}, How::layers),
                              got = run(in, {.dropout = 0.1, .chunk_rows = 9}, How::chunked);
    CHECK(got[0].dtype() == compute_dtype(mode));
    CHECK(same_bits(got[0], layers[0]));
    CHECK(same_bits(got[1], layers[1]));
    for (std::size_t i = 2; i < got.size(); ++i) CHECK(got[i].dtype() == DType::f32);
  }
}

TEST_CASE("mlp: a region's replay gives the plain run's bits without running it, and the plan device its bytes") {
  const Operands in = operands({4, 10, 16}, 64, 16, DType::f32, DType::f32);
  const ChunkedMlpOptions options{.dropout = 0.2, .chunk_rows = 9};
  const std::vector<Tensor> region = run(in, options, How::chunked_in_region);
  const auto plain = [&] {
    for (const Tensor& t : in.all()) clear_grad(t);
    std::vector<Tensor> results{square(forward(in, options, How::chunked))};
    backward(results[0], {.grad_out = test_values(results[0].shape(), DType::f32, 9)});
    for (const Tensor& t : in.all()) results.push_back(grad_of(t));
    return results;
  }();
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], region[i]));
  for (const How how : {How::layers, How::chunked, How::chunked_in_region}) {
    const Device real = Device::new_cpu(), plan = Device::plan();
    run(operands({4, 10, 16}, 64, 16, DType::f32, DType::f32, true, real), options, how);
    run(operands({4, 10, 16}, 64, 16, DType::f32, DType::f32, true, plan), options, how);
    CHECK(plan.peak_bytes() == real.peak_bytes());
    CHECK(plan.live_bytes() == 0);
    CHECK(real.live_bytes() == 0);
  }
}

TEST_CASE("mlp: hidden values exist for one chunk, twice that in backward, and are not kept") {
  const std::int64_t rows = 256, width = 8, hidden = 512, chunk = 16;
  const Device device = Device::new_cpu();
  const Operands in = operands({rows, width}, hidden, width, DType::f32, DType::f32, true, device);
  device.reset_peak();
  const std::int64_t before = device.live_bytes(), unit = rows * width * 4, buffer = chunk * hidden * 4;
  const Tensor y = chunked_mlp(in.x, in.weight1, in.bias1, in.weight2, in.bias2, {.chunk_rows = chunk});
  CHECK(device.live_bytes() - before == unit);
  CHECK(device.peak_bytes() - before == unit + buffer);
  backward(y, {.grad_out = full(y.shape(), 1, DType::f32, device)});
  // Result, its gradient and that of x; the gradients of the parameters, and parts of the two biases'.
  const std::int64_t gradients = (2 * hidden * width + 2 * (hidden + width)) * 4;
  CHECK(device.peak_bytes() - before <= 3 * unit + 2 * buffer + gradients);
}

TEST_CASE("mlp: backward pays for the first layer once more") {
  const Operands in = operands({64, 512}, 128, 512, DType::f32, DType::f32);
  const double product = 2.0 * 64 * 512 * 128;
  cost_meter() = {};
  const Tensor y = chunked_mlp(in.x, in.weight1, in.bias1, in.weight2, in.bias2, {.chunk_rows = 16});
  const double forward_flops = cost_meter().total.flops;
  CHECK(forward_flops == Approx(2 * product).epsilon(0.2));
  backward(y, {.grad_out = test_values(y.shape(), DType::f32, 9)});
  CHECK(cost_meter().total.flops - forward_flops == Approx(5 * product).epsilon(0.2));
}

TEST_CASE("mlp: errors name what does not fit") {
  const Tensor x = zeros({2, 3}, DType::f32), w1 = zeros({4, 3}, DType::f32), w2 = zeros({3, 4}, DType::f32);
  CHECK(message_of([&] { chunked_mlp(x, w1, {}, w1, {}, {}); }) ==
        "mlp: weights must be [hidden, in] and [out, hidden], got [4, 3] and [4, 3]");
  CHECK(message_of([&] { chunked_mlp(w2, w1, {}, w2, {}, {}); }) == "mlp: x must be [..., 3], got [3, 4]");
  CHECK(message_of([&] { chunked_mlp(x, w1, {}, w2, {}, {.chunk_rows = -1}); }) == "mlp: expected chunk_rows >= 0, got -1");
  CHECK(message_of([&] { chunked_mlp(x, w1, {}, w2, {}, {.dropout = 1.5}); }) == "mlp: dropout must be in [0, 1], got 1.5");
}
