// The loss whose logits never exist whole, against linear() and cross_entropy() and by itself.
#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/linear.h>
#include <refrain/autograd/ops/linear_cross_entropy.h>
#include <refrain/autograd/precision.h>
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

Tensor leaf(const Tensor& t) {
  if (t.defined()) set_requires_grad(t);
  return t;
}

Tensor targets_of(const std::vector<std::int64_t>& values) { return from_values(values, {std::int64_t(values.size())}); }

// Targets over `classes`, every fifth one ignored.
Tensor some_targets(const Shape& rows, std::int64_t classes) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < numel_of(rows); ++i) values.push_back(i % 5 == 3 ? -100 : i * 7 % classes);
  return from_values(values, rows);
}

struct Operands {
  Tensor hidden, weight, bias;
};

Operands operands(const Shape& hidden, std::int64_t classes, DType dtype, bool has_bias = true, DType parameters = DType::f32) {
  const std::int64_t width = hidden[hidden.size() - 1];
  if (dtype == DType::f64 || is_16_bit(parameters)) parameters = dtype;
  return {leaf(test_values(hidden, dtype, 1)), leaf(test_values({classes, width}, parameters, 2)),
          has_bias ? leaf(test_values({classes}, parameters, 3)) : Tensor()};
}

struct Result {
  Tensor loss;
  std::int64_t correct = 0;
  Tensor hidden, weight, bias;  // gradients
};

Result run(const Operands& in, const Tensor& targets, const CrossEntropyOptions& options, std::int64_t chunk_rows, bool is_op = true) {
  for (const Tensor& t : {in.hidden, in.weight, in.bias}) {
    if (t.defined()) clear_grad(t);
  }
  Result result;
  if (is_op) {
    const LinearCrossEntropy r = linear_cross_entropy(in.hidden, in.weight, in.bias, targets, options, chunk_rows);
    result.loss = r.loss;
    result.correct = r.correct;
  } else {
    const Tensor logits = linear(in.hidden, in.weight, in.bias);
    result.loss = cross_entropy(logits, targets, options);
    result.correct = count_correct(detach(logits), targets, options.ignore_index);
  }
  backward(result.loss, {.grad_out = test_values(result.loss.shape(), result.loss.dtype(), 4)});
  result.hidden = grad_of(in.hidden);
  result.weight = grad_of(in.weight);
  if (in.bias.defined()) result.bias = grad_of(in.bias);
  return result;
}

bool are_near(const Tensor& a, const Tensor& b, double bound) {
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!(std::abs(x[i] - y[i]) <= bound)) return false;
  }
  return a.shape() == b.shape() && a.dtype() == b.dtype();
}

}  // namespace

TEST_CASE("linear_cross_entropy: gradients match differences for every reduction and cut") {
  for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    for (const double smoothing : {0.0, 0.1}) {
      const CrossEntropyOptions options{.label_smoothing = smoothing, .reduction = reduction, .scale = 0.7};
      for (const std::int64_t chunk : {0, 1, 2, 5, 7, 100}) {
        gradcheck(
            [=](auto in) {
              return linear_cross_entropy(in[0], in[1], in[2], targets_of({2, -100, 0, 4, 3, 3, 1}), options, chunk).loss;
            },
            {test_values({7, 3}, DType::f64, 1), test_values({5, 3}, DType::f64, 2), test_values({5}, DType::f64, 3)});
      }
      const Tensor targets = from_values(std::vector<std::int64_t>{1, 0, 2, 2, -100, 0}, {2, 3});
      gradcheck([=](auto in) { return linear_cross_entropy(in[0], in[1], Tensor(), targets, options, 2).loss; },
                {view::transpose(test_values({3, 2, 4}, DType::f64, 1), 0, 1), view::transpose(test_values({4, 3}, DType::f64, 2), 0, 1)});
    }
  }
}

TEST_CASE("linear_cross_entropy: frozen operands get no gradient and the others the same bits") {
  const Tensor targets = some_targets({11}, 6);
  const Operands in = operands({11, 4}, 6, DType::f32);
  const Result all = run(in, targets, {}, 4);
  for (int wanted = 1; wanted < 7; ++wanted) {
    const auto part = [wanted](const Tensor& t, int bit) {
      return wanted & bit ? leaf(clone(t.without_autograd())) : t.without_autograd();
    };
    const Tensor hidden = part(in.hidden, 1), weight = part(in.weight, 2), bias = part(in.bias, 4);
    backward(linear_cross_entropy(hidden, weight, bias, targets, {}, 4).loss, {.grad_out = test_values({}, DType::f32, 4)});
    INFO(wanted);
    if (wanted & 1) CHECK(same_bits(grad_of(hidden), all.hidden));
    if (wanted & 2) CHECK(same_bits(grad_of(weight), all.weight));
    if (wanted & 4) CHECK(same_bits(grad_of(bias), all.bias));
  }
}

TEST_CASE("linear_cross_entropy: loss, predictions and the gradient of hidden have the bits of linear and cross_entropy") {
  struct Size {
    Shape hidden;
    std::int64_t classes;
  };
  const std::vector<Size> sizes{{{1, 1}, 1}, {{5, 3}, 1}, {{2, 31, 33}, 7}, {{50, 64}, 1000}, {{33, 8}, 31}, {{4, 32, 16}, 100}};
  for (const Size& size : sizes) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      for (const Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
        const bool has_bias = reduction != Reduction::sum;
        const Operands in = operands(size.hidden, size.classes, dtype, has_bias, reduction == Reduction::mean ? DType::f32 : dtype);
        Shape rows = size.hidden;
        rows.erase(rows.size() - 1);
        const Tensor targets = some_targets(rows, size.classes);
        const CrossEntropyOptions options{.label_smoothing = has_bias ? 0.1 : 0, .reduction = reduction, .scale = 0.37};
        const Result whole = run(in, targets, options, 0, false);
        for (const std::int64_t chunk : {0, 1, 7, 24, 1000}) {
          INFO(dtype << " " << size.hidden << " " << size.classes << " " << name_of(reduction) << " chunks of " << chunk);
          const Result got = run(in, targets, options, chunk);
          CHECK(same_bits(got.loss, whole.loss));
          CHECK(got.correct == whole.correct);
          CHECK(same_bits(got.hidden, whole.hidden));
          if (chunk == 0 || chunk >= numel_of(rows)) {  // one chunk: the composition itself
            CHECK(same_bits(got.weight, whole.weight));
            if (has_bias) CHECK(same_bits(got.bias, whole.bias));
            continue;
          }
          // Sums of N terms below 1 in magnitude (|softmax - q| <= 1, |hidden| <= 1), in two orders, and a last rounding each.
          const double N = double(numel_of(rows)), u = roundoff_of(dtype == DType::f64 ? dtype : DType::f32);
          const double scale = 0.37 * (reduction == Reduction::mean ? 1 / std::max(1.0, N - double(numel_of(rows)) / 5) : 1);
          const double bound = scale * N * (2 * (N + 2) * u + 2 * roundoff_of(in.weight.dtype()));
          CHECK(are_near(got.weight, whole.weight, bound));
          if (has_bias) CHECK(are_near(got.bias, whole.bias, bound));
        }
      }
    }
  }
}

TEST_CASE("linear_cross_entropy: no rows, no counted rows and one class") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t chunk : {0, 1, 3}) {
      for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
        const auto zeros_of = [](const Tensor& t) {
          for (double v : t.to_vector<double>()) CHECK(v == 0);
        };
        for (const std::vector<std::int64_t>& values : {std::vector<std::int64_t>{}, {-100, -100, -100, -100}}) {
          const Operands in = operands({std::int64_t(values.size()), 3}, 5, dtype, true, dtype);
          const Result got = run(in, targets_of(values), {.label_smoothing = 0.1, .reduction = reduction}, chunk);
          CHECK(got.loss.item() == 0);
          CHECK(got.correct == 0);
          zeros_of(got.hidden);
          zeros_of(got.weight);
          zeros_of(got.bias);
        }
        const Operands one = operands({4, 3}, 1, dtype, true, dtype);
        const Result got = run(one, targets_of({0, 0, -100, 0}), {.reduction = reduction}, chunk);
        CHECK(got.loss.item() == 0);
        CHECK(got.correct == 3);
        zeros_of(got.hidden);
        zeros_of(got.weight);
      }
    }
  }
}

TEST_CASE("linear_cross_entropy: ignored rows count for nothing, whatever lies in them") {
  const Operands in = operands({6, 4}, 5, DType::f32);
  const Result clean = run(in, targets_of({0, -100, 2, 3, -100, 4}), {}, 2);
  Operands wild = {leaf(clone(in.hidden.without_autograd())), in.weight, in.bias};
  for (int i = 0; i < 4; ++i) wild.hidden.data<float>()[4 + i] = 1e4f, wild.hidden.data<float>()[16 + i] = -1e4f;
  const Result got = run(wild, targets_of({0, -100, 2, 3, -100, 4}), {}, 2);
  CHECK(same_bits(got.loss, clean.loss));
  CHECK(same_bits(got.hidden, clean.hidden));
  CHECK(same_bits(got.weight, clean.weight));
  CHECK(got.correct == clean.correct);
}

TEST_CASE("linear_cross_entropy: logits of thousands give finite losses and gradients") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const Operands in{leaf(full({3, 2}, 100, dtype)), leaf(tensor_of({-100, -100, 100, 100, 50, 0}, {3, 2}, dtype)), Tensor()};
    const Result got = run(in, targets_of({0, 1, 2}), {.reduction = Reduction::none}, 2);
    CHECK(error_against(got.loss, {40000, 0, 15000}) < 2 * roundoff_of(dtype));
    CHECK(got.correct == 1);
    for (const Tensor& t : {got.hidden, got.weight}) {
      for (double v : t.to_vector<double>()) CHECK(std::isfinite(v));
    }
  }
}

TEST_CASE("linear_cross_entropy: the same bits on 1, 2 and 4 threads") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const Operands in = operands({300, 64}, 700, dtype, true, dtype);
    const Tensor targets = some_targets({300}, 700);
    CHECK(same_on_all_threads([&] {
      const Result r = run(in, targets, {.label_smoothing = 0.1}, 128);
      return std::vector<Tensor>{r.loss, r.hidden, r.weight, r.bias};
    }));
  }
}

TEST_CASE("linear_cross_entropy: in a mixed mode it does what linear and cross_entropy do") {
  for (const Precision mode : {Precision::f16_mixed, Precision::bf16_mixed}) {
    const Operands in = operands({40, 16}, 90, DType::f32);
    const Tensor targets = some_targets({40}, 90);
    const PrecisionScope scope(mode);
    const Result whole = run(in, targets, {}, 0, false), one = run(in, targets, {}, 0), several = run(in, targets, {}, 16);
    CHECK(whole.loss.dtype() == DType::f32);
    for (const Result& r : {one, several}) {
      CHECK(same_bits(r.loss, whole.loss));
      CHECK(same_bits(r.hidden, whole.hidden));
      CHECK(r.weight.dtype() == DType::f32);
    }
    CHECK(same_bits(one.weight, whole.weight));
    CHECK(are_near(several.weight, whole.weight, 1.0 / 32 * 40 * 2 * 42 * 0x1p-24));
  }
}

TEST_CASE("linear_cross_entropy: a region's replay gives the plain run's bits, and the plan device its bytes") {
  const auto train = [](bool is_region, const Device& device) {
    const auto on = [&](const Shape& shape, int salt) {
      const Tensor t = empty(shape, DType::f32, device);
      if (device.has_bytes()) copy_values(t, test_values(shape, DType::f32, salt));
      return leaf(t);
    };
    const Operands in{on({10, 8}, 1), on({12, 8}, 2), on({12}, 3)};
    const Tensor targets = full({10}, 3, DType::i64, device);
    const auto f = [targets](const Tensor& x, const Tensor& w, const Tensor& b) {
      return linear_cross_entropy(square(x) * 1.5, w, b, targets, {}, 4).loss * 2.0;
    };
    const Tensor y = is_region ? checkpoint(f, in.hidden, in.weight, in.bias) : f(in.hidden, in.weight, in.bias);
    backward(y);
    return std::vector<Tensor>{y, grad_of(in.hidden), grad_of(in.weight), grad_of(in.bias)};
  };
  const std::vector<Tensor> plain = train(false, Device::cpu()), region = train(true, Device::cpu());
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], region[i]));
  for (const bool is_region : {false, true}) {
    const Device real = Device::new_cpu(), plan = Device::plan();
    train(is_region, real);
    train(is_region, plan);
    CHECK(plan.peak_bytes() == real.peak_bytes());
    CHECK(plan.live_bytes() == 0);
    CHECK(real.live_bytes() == 0);
  }
}

TEST_CASE("linear_cross_entropy: one chunk of logits exists at a time, and nothing of them between forward and backward") {
  const std::int64_t rows = 64, classes = 4096, width = 8, chunk = 4, logits = classes * chunk;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const std::int64_t size = std::int64_t(size_of(dtype));
    const Device device = Device::new_cpu();
    const Tensor hidden = leaf(full({rows, width}, 0.5, dtype, device)), weight = leaf(full({classes, width}, 0.25, dtype, device));
    const Tensor targets = full({rows}, 3, DType::i64, device);
    device.reset_peak();
    const std::int64_t before = device.live_bytes(), few = rows * width * 4 + 2048;
    const Tensor loss = linear_cross_entropy(hidden, weight, Tensor(), targets, {}, chunk).loss;
    CHECK(device.live_bytes() - before < few);
    CHECK(device.peak_bytes() - before < logits * size + few);
    backward(loss);
    // The gradient of the weight, and for 16 bits its sums in f32.
    const std::int64_t grads = classes * width * (dtype == DType::f32 ? 4 : 2 + 4);
    CHECK(device.peak_bytes() - before < logits * size + grads + few);
  }
}

TEST_CASE("linear_cross_entropy: backward pays for the logits once more") {
  const Operands in = operands({64, 16}, 50, DType::f32, false);
  const Tensor targets = some_targets({64}, 50);
  const double product = 2.0 * 64 * 16 * 50, losses = 14.0 * 64 * 50;
  cost_meter() = {};
  const Tensor loss = linear_cross_entropy(in.hidden, in.weight, Tensor(), targets, {}, 16).loss;
  const double forward = cost_meter().total.flops;
  CHECK(forward == Approx(product + losses).epsilon(0.1));
  backward(loss);
  CHECK(cost_meter().total.flops - forward == Approx(3 * product + losses).epsilon(0.1));
  CHECK(cost_meter().replay.flops == 0);
}

TEST_CASE("linear_cross_entropy: errors name what does not fit") {
  const Operands in = operands({4, 3}, 5, DType::f32);
  const auto message = [&](const Tensor& hidden, const Tensor& targets, std::int64_t chunk) {
    return message_of([&] { linear_cross_entropy(hidden, in.weight, in.bias, targets, {}, chunk); });
  };
  CHECK(message(in.hidden, targets_of({0, 1, 2, 5}), 3) ==
        "cross_entropy: target of row 3 must be 0 … 4 (V = 5) or ignore_index -100, got 5");
  CHECK(message(in.hidden, targets_of({0, 1, 2}), 3) == "linear_cross_entropy: targets must be [4], got [3]");
  CHECK(message(zeros({4, 2}, DType::f32), targets_of({0, 1, 2, 3}), 3) == "linear_cross_entropy: hidden must be [..., 3], got [4, 2]");
  CHECK(message(in.hidden, targets_of({0, 1, 2, 3}), -1) == "linear_cross_entropy: expected chunk_rows >= 0, got -1");
  CHECK(message(zeros({4, 3}, DType::f64), targets_of({0, 1, 2, 3}), 1).starts_with("linear_cross_entropy: weight must be f64"));
}
