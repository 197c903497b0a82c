// Losses of f16 and bf16 inputs. u is the relative change by one rounding, 2^-11 (f16) or 2^-8 (bf16).
#include <refrain/core/view.h>
#include <refrain/kernels/loss/loss.h>
#include <refrain/tests/support/half.h>

using namespace refrain;

namespace {

struct Options {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;
  double scale = 1;
};

struct Result {
  Tensor loss, grad;
};

Tensor targets_of(const std::vector<std::int64_t>& values) { return from_values(values, {std::int64_t(values.size())}); }

Result run_both(const Tensor& logits, const Tensor& targets, const Options& o, double grad_out = 1) {
  Shape pairs = targets.shape();
  pairs.push_back(2);
  const Shape loss_shape = o.reduction == Reduction::none ? targets.shape() : Shape{};
  const Guarded loss(loss_shape, DType::f32), grad(logits.shape(), logits.dtype());
  const Tensor statistics = empty(pairs, DType::f32), row_losses = empty(targets.shape(), DType::f32);
  launch(CrossEntropyForward{.logits = logits,
                             .targets = targets,
                             .ignore_index = o.ignore_index,
                             .label_smoothing = o.label_smoothing,
                             .reduction = o.reduction,
                             .scale = o.scale,
                             .out = loss.tensor,
                             .statistics = statistics,
                             .row_losses = row_losses});
  launch(CrossEntropyBackward{.grad_out = full(loss_shape, grad_out, DType::f32),
                              .logits = logits,
                              .targets = targets,
                              .statistics = statistics,
                              .ignore_index = o.ignore_index,
                              .label_smoothing = o.label_smoothing,
                              .reduction = o.reduction,
                              .scale = o.scale,
                              .out = grad.tensor});
  CHECK(loss.is_intact());
  CHECK(grad.is_intact());
  return {loss.tensor, grad.tensor};
}

// Loss and gradient of one row in double.
struct Row {
  double loss = 0;
  std::vector<double> grad;
};
Row exact_row(const double* x, std::int64_t classes, std::int64_t target, double smoothing) {
  Row row{0, std::vector<double>(std::size_t(classes))};
  double m = -HUGE_VAL, sum = 0, mean = 0;
  for (std::int64_t c = 0; c < classes; ++c) m = std::max(m, x[c]), mean += x[c] / double(classes);
  for (std::int64_t c = 0; c < classes; ++c) sum += std::exp(x[c] - m);
  row.loss = (1 - smoothing) * (std::log(sum) + m - x[target]) + smoothing * (std::log(sum) + m - mean);
  for (std::int64_t c = 0; c < classes; ++c) {
    row.grad[std::size_t(c)] = std::exp(x[c] - m) / sum - smoothing / double(classes) - (c == target ? 1 - smoothing : 0);
  }
  return row;
}

}  // namespace

// The loss is f32 all the way: its error is that of the f32 kernel, (2·D + |log(sum)| + n / 8 + 10)·2^-24 a row for logits D
// apart. The gradient (p - q)·s, with p's relative error (D + |log(sum)| + n / 8 + 12)·2^-24, is rounded once:
// |g - ref| <= u·|ref| + (2·D + n / 8 + 20)·2^-24·s.
TEST_CASE("cross-entropy of 16-bit logits: an f32 loss, gradients rounded once") {
  for (DType half : kHalves) {
    for (const auto& sizes :
         std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 3}, {1, 1}, {1, 33}, {5, 31}, {33, 10}, {3, 1000}, {2, 5000}}) {
      const std::int64_t rows = sizes.first, classes = sizes.second;
      const Tensor logits = random_tensor({rows, classes}, half, 1, -8, 8);
      std::vector<std::int64_t> at;
      for (double v : random_values(rows, 2, 0, double(classes))) at.push_back(at.size() % 4 == 3 ? -100 : std::int64_t(v));
      const Tensor targets = targets_of(at);
      const std::vector<double> x = logits.to_vector<double>();
      for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
        for (double smoothing : {0.0, 0.1}) {
          const Options o{.label_smoothing = smoothing, .reduction = reduction, .scale = 0.75};
          const Result got = run_both(logits, targets, o, 1.5), wide = run_both(as(logits, DType::f32), targets, o, 1.5);
          INFO(half << " " << rows << " " << classes << " " << name_of(reduction) << " " << smoothing);
          CHECK(same_bits(got.loss, wide.loss));
          CHECK(num_different(got.grad, as(wide.grad, half)) == 0);
          double counted = 0;
          for (std::int64_t t : at) counted += t >= 0;
          const double divisor = reduction == Reduction::mean ? std::max(1.0, counted) : 1, s = 0.75 * 1.5 / divisor;
          std::vector<double> losses, grads;
          for (std::size_t r = 0; r < at.size(); ++r) {
            const Row row = at[r] < 0 ? Row{0, std::vector<double>(std::size_t(classes))}
                                      : exact_row(&x[r * std::size_t(classes)], classes, at[r], smoothing);
            losses.push_back(row.loss * 0.75);
            for (double g : row.grad) grads.push_back(g * s);
          }
          const double row_error = (32 + 9 + double(classes) / 8 + 10) * 0x1p-24;
          CHECK(num_outside(got.grad, grads, [&](std::size_t, double e) {
                  return roundoff_of(half) * std::abs(e) + (32 + double(classes) / 8 + 20) * 0x1p-24 * s + underflow_of(half);
                }) == 0);
          if (reduction != Reduction::none) {
            double sum = 0;
            for (double l : losses) sum += l;
            losses = {sum / divisor};
          }
          CHECK(num_outside(got.loss, losses,
                            [&](std::size_t, double e) { return 0x1p-23 * std::abs(e) + row_error * (1 + double(rows)); }) == 0);
        }
      }
    }
  }
}

TEST_CASE("cross-entropy of 16-bit logits: ignored rows give a loss and gradients of exactly 0") {
  for (DType half : kHalves) {
    const Result none = run_both(tensor_of({1, 2, 3}, {1, 3}, half), targets_of({-100}), {});
    CHECK(none.loss.item() == 0);
    CHECK(none.grad.to_vector<double>() == std::vector<double>{0, 0, 0});
    const Result one = run_both(tensor_of({1, 2, 3, 4, 0, -1}, {2, 3}, half), targets_of({2, -100}), {});
    CHECK(std::abs(one.loss.item() - 0.40760596) < 1e-7);
    const double u = roundoff_of(half);
    CHECK(num_outside(one.grad, {0.09003057, 0.24472847, -0.33475904, 0, 0, 0},
                      [u](std::size_t, double e) { return (u + 1e-6) * std::abs(e); }) == 0);
    // Ignored logits may be anything.
    const Result wild = run_both(tensor_of({1, 2, 3, NAN, HUGE_VAL, -1}, {2, 3}, half), targets_of({2, -100}), {});
    CHECK(same_bits(wild.loss, one.loss));
    CHECK(same_bits(wild.grad, one.grad));
  }
}

TEST_CASE("cross-entropy of 16-bit logits: the ends of f16's range, and probabilities near 1") {
  // lse and losses far above what f16 holds with any accuracy; differences above its range.
  const Result far = run_both(tensor_of({65504, -65504, 0}, {1, 3}, DType::f16), targets_of({1}), {});
  CHECK(far.loss.item() == 131008);
  CHECK(far.grad.to_vector<double>() == std::vector<double>{1, -1, 0});
  for (DType half : kHalves) {
    // p = 1 - 2·exp(-12): the target's gradient is p - 1 to full relative precision, though 1 - p is below u.
    const Result near = run_both(tensor_of({12, 0, 0}, {1, 3}, half), targets_of({0}), {});
    const double rest = 2 * std::exp(-12.0) / (1 + 2 * std::exp(-12.0));
    CHECK(std::abs(near.loss.item() - std::log1p(2 * std::exp(-12.0))) < 2e-7);
    CHECK(std::abs(near.grad.to_vector<double>()[0] + rest) <= roundoff_of(half) * rest + 2 * 0x1p-24 + underflow_of(half));
    // Sums of 50,000 equal terms: in 16 bits they would stop at 256 or 2,048.
    const Result wide = run_both(zeros({1, 50000}, half), targets_of({7}), {}, 1024);
    CHECK(std::abs(wide.loss.item() - std::log(50000.0)) < 1e-5);
    CHECK(num_outside(view::slice(wide.grad, 1, 8, 50000), std::vector<double>(49992, 1024.0 / 50000),
                      [&](std::size_t, double e) { return (roundoff_of(half) + 1e-5) * e; }) == 0);
    CHECK(std::isnan(run_both(tensor_of({1, NAN}, {1, 2}, half), targets_of({0}), {}).loss.item()));
    CHECK(std::isinf(run_both(full({1, 3}, -HUGE_VAL, half), targets_of({0}), {}).loss.item()));
    // Loss scaling: the incoming gradient of 2^16 is an f32.
    CHECK(run_both(zeros({64, 2}, half), zeros({64}, DType::i64), {}, 65536).grad.to_vector<double>()[1] == 512);
  }
}

TEST_CASE("cross-entropy of 16-bit logits: bits do not depend on threads or on the number of rows") {
  for (DType half : kHalves) {
    const Tensor logits = random_tensor({300, 130}, half, 1, -9, 9), targets = zeros({300}, DType::i64);
    const Options o{.label_smoothing = 0.1, .reduction = Reduction::sum};
    CHECK(same_on_all_threads([&] {
      const Result r = run_both(logits, targets, o);
      return std::vector<Tensor>{r.loss, r.grad};
    }));
    const Result all = run_both(logits, targets, o);
    for (std::int64_t row : {0, 13, 299}) {
      const Result one = run_both(clone(view::slice(logits, 0, row, row + 1)), zeros({1}, DType::i64), o);
      CHECK(same_bits(one.grad, view::slice(all.grad, 0, row, row + 1)));
    }
  }
}

TEST_CASE("count_correct of 16-bit logits: the first of equals counts") {
  for (DType half : kHalves) {
    for (std::int64_t classes : {1, 2, 31, 33, 511, 512, 513, 1300}) {
      const Tensor logits = random_tensor({40, classes}, half, 1), wide = as(logits, DType::f32);
      std::vector<std::int64_t> at;
      for (std::int64_t r = 0; r < 40; ++r) {
        const float* x = wide.data<float>() + r * classes;
        at.push_back(r % 5 == 4 ? -100 : r % 3 == 0 ? 0 : std::max_element(x, x + classes) - x);
      }
      const Tensor got = empty({}, DType::i64), expected = empty({}, DType::i64);
      launch(CountCorrect{.logits = logits, .targets = targets_of(at), .ignore_index = -100, .out = got});
      launch(CountCorrect{.logits = wide, .targets = targets_of(at), .ignore_index = -100, .out = expected});
      CHECK(got.item() == expected.item());
      CHECK(got.item() >= (classes == 1 ? 32 : 20));
    }
    const Tensor ties = empty({}, DType::i64);
    launch(CountCorrect{
        .logits = tensor_of({3, 3, 1, 2, 5, 5}, {2, 3}, half), .targets = targets_of({0, 2}), .ignore_index = -100, .out = ties});
    CHECK(ties.item() == 1);
  }
}

// x - t is rounded by 2^-24·|x - t|, its square by 3·2^-24 of itself, pieces of 16,384 squares by (16384 / 16 + 4)·2^-24 of
// their sum, and pieces are added in f64. The gradient is rounded once: |g - ref| <= (u + 4·2^-24)·|ref|.
TEST_CASE("mse of 16-bit inputs: an f32 loss, gradients rounded once, the target in f32 or 16 bits") {
  for (DType half : kHalves) {
    for (std::int64_t n : {0, 1, 15, 31, 33, 1000, 20001}) {
      const Tensor a = random_tensor({n}, half, 1, -300, 300), b = random_tensor({n}, half, 2), wide = random_tensor({n}, DType::f32, 3);
      for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
        const Shape shape = reduction == Reduction::none ? Shape{n} : Shape{};
        const auto forward = [&](const Tensor& x, const Tensor& target) {
          const Guarded out(shape, DType::f32);
          const Tensor partials = empty({MseForward::num_partials(n)}, DType::f64);
          launch(MseForward{.x = x, .target = target, .reduction = reduction, .out = out.tensor, .partials = partials});
          CHECK(out.is_intact());
          return out.tensor;
        };
        const auto backward = [&](const Tensor& x, const Tensor& target) {
          const Guarded out(x);
          launch(
              MseBackward{.grad_out = full(shape, 0.5, DType::f32), .x = x, .target = target, .reduction = reduction, .out = out.tensor});
          CHECK(out.is_intact());
          return out.tensor;
        };
        INFO(half << " " << n << " " << name_of(reduction));
        const Tensor wide_a = as(a, DType::f32), wide_b = as(b, DType::f32);
        CHECK(same_bits(forward(a, b), forward(wide_a, wide_b)));
        CHECK(same_bits(forward(a, wide), forward(wide_a, wide)));
        CHECK(same_bits(forward(wide, a), forward(wide, wide_a)));
        CHECK(same_bits(backward(a, b), as(backward(wide_a, wide_b), half)));
        CHECK(same_bits(backward(a, wide), as(backward(wide_a, wide), half)));
        CHECK(same_bits(backward(wide, a), backward(wide, wide_a)));
        const std::vector<double> va = a.to_vector<double>(), vb = wide.to_vector<double>();
        std::vector<double> grads, losses;
        double sum = 0;
        for (std::size_t i = 0; i < va.size(); ++i) {
          const double difference = va[i] - vb[i];
          grads.push_back(difference * (reduction == Reduction::mean ? 1 / double(n) : 1));
          losses.push_back(difference * difference);
          sum += difference * difference;
        }
        if (reduction != Reduction::none) losses = {reduction == Reduction::mean ? sum / double(std::max<std::int64_t>(n, 1)) : sum};
        CHECK(num_outside(backward(a, wide), grads, [&](std::size_t, double e) {
                return (roundoff_of(half) + 4 * 0x1p-24) * std::abs(e) + underflow_of(half);
              }) == 0);
        CHECK(num_outside(forward(a, wide), losses,
                          [&](std::size_t, double e) { return (n + 8 < 1028 ? double(n) + 8 : 1036) * 0x1p-24 * e; }) == 0);
      }
    }
    CHECK(same_on_all_threads([&] {
      const Tensor x = random_tensor({100003}, half, 1), target = random_tensor({100003}, DType::f32, 2), out = empty({}, DType::f32);
      launch(MseForward{.x = x,
                        .target = target,
                        .reduction = Reduction::mean,
                        .out = out,
                        .partials = empty({MseForward::num_partials(100003)}, DType::f64)});
      return std::vector<Tensor>{out};
    }));
  }
  // 60,000² is no f16.
  const Tensor out = empty({}, DType::f32);
  launch(MseForward{.x = full({2}, 60000, DType::f16),
                    .target = zeros({2}, DType::f16),
                    .reduction = Reduction::mean,
                    .out = out,
                    .partials = empty({1}, DType::f64)});
  CHECK(out.item() == 3.6e9);
}

TEST_CASE("losses: results in 16 bits and pairs of dtypes that do not mix are refused") {
  const Tensor logits = zeros({2, 3}, DType::f16), targets = zeros({2}, DType::i64);
  CHECK(message_of([&] {
          launch(CrossEntropyForward{.logits = logits,
                                     .targets = targets,
                                     .ignore_index = -100,
                                     .label_smoothing = 0,
                                     .reduction = Reduction::mean,
                                     .scale = 1,
                                     .out = zeros({}, DType::f16),
                                     .statistics = {},
                                     .row_losses = zeros({2}, DType::f32)});
        }) == "cross_entropy: out must be f32, got f16");
  CHECK(message_of([&] {
          launch(MseForward{.x = zeros({2}, DType::f16),
                            .target = zeros({2}, DType::bf16),
                            .reduction = Reduction::none,
                            .out = zeros({2}, DType::f32),
                            .partials = {}});
        }) == "mse_loss: x and target must share a dtype, or be f32 and a 16-bit type, got f16 and bf16");
}
