// Cross-entropy against a plain loop in long double.
#include <refrain/kernels/loss/loss.h>
#include <refrain/tests/support/values.h>

#include <limits>

using namespace refrain;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Options {
  std::int64_t ignore_index = -100;
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;
  double scale = 1;
};

struct Result {
  Tensor loss, grad;
};

Result run_both(const Tensor& logits, const Tensor& targets, const Options& o, double grad_out = 1) {
  Shape pairs = targets.shape();
  pairs.push_back(2);
  const Shape loss_shape = o.reduction == Reduction::none ? targets.shape() : Shape{};
  Result r{full(loss_shape, 77, logits.dtype()), full(logits.shape(), 77, logits.dtype())};
  const Tensor statistics = empty(pairs, logits.dtype()), row_losses = empty(targets.shape(), logits.dtype());
  launch(CrossEntropyForward{.logits = logits,
                             .targets = targets,
                             .ignore_index = o.ignore_index,
                             .label_smoothing = o.label_smoothing,
                             .reduction = o.reduction,
                             .scale = o.scale,
                             .out = r.loss,
                             .statistics = statistics,
                             .row_losses = row_losses});
  launch(CrossEntropyBackward{.grad_out = full(loss_shape, grad_out, logits.dtype()),
                              .logits = logits,
                              .targets = targets,
                              .statistics = statistics,
                              .ignore_index = o.ignore_index,
                              .label_smoothing = o.label_smoothing,
                              .reduction = o.reduction,
                              .scale = o.scale,
                              .out = r.grad});
  return r;
}

Tensor targets_of(const std::vector<std::int64_t>& values) { return from_values(values, {std::int64_t(values.size())}); }

}  // namespace

TEST_CASE("cross_entropy: loss and gradient match a loop in long double") {
  for (DType dtype : {DType::f32, DType::f64}) {
    const double tolerance = dtype == DType::f64 ? 1e-13 : 2e-6;
    for (std::int64_t rows : {0, 1, 7, 64}) {
      for (std::int64_t classes : {1, 2, 10, 31, 33, 1000, 2048, 5000}) {
        for (double smoothing : {0.0, 0.1, 1.0}) {
          for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
            const Tensor logits = random_tensor({rows, classes}, dtype, std::uint64_t(classes), -8, 8);
            std::vector<std::int64_t> targets;
            for (std::int64_t r = 0; r < rows; ++r) targets.push_back(r % 5 == 3 ? -1 : r * 37 % classes);
            const Options options{-1, smoothing, reduction, 0.5};
            const Result got = run_both(logits, targets_of(targets), options, 3);

            const auto x = logits.to_vector<double>();
            const std::size_t V = std::size_t(classes);
            long double total = 0, counted = 0;
            for (std::int64_t t : targets) counted += t >= 0;
            const double divisor = reduction == Reduction::mean ? std::max(1.0, double(counted)) : 1.0;
            std::vector<double> losses, grad(x.size(), 0.0);
            for (std::size_t r = 0; r < targets.size(); ++r) {
              losses.push_back(0);
              if (targets[r] < 0) continue;
              long double maximum = -kInf, sum = 0, loss = 0;
              for (std::size_t c = 0; c < V; ++c) maximum = std::max<long double>(maximum, x[r * V + c]);
              for (std::size_t c = 0; c < V; ++c) sum += std::exp(x[r * V + c] - maximum);
              for (std::size_t c = 0; c < V; ++c) {
                const long double log_p = x[r * V + c] - maximum - std::log(sum);
                const long double q = smoothing / double(V) + (std::int64_t(c) == targets[r] ? 1 - smoothing : 0);
                loss -= q * log_p;
                grad[r * V + c] = double(3 * 0.5 * (std::exp(log_p) - q) / divisor);
              }
              losses.back() = double(loss) * 0.5;
              total += loss * 0.5;
            }
            INFO(dtype << " " << rows << " x " << classes << " smoothing " << smoothing << " " << name_of(reduction));
            if (reduction == Reduction::none) CHECK(error_against(got.loss, losses) < tolerance);
            else CHECK(error_against(got.loss, {double(total / divisor)}) < tolerance);
            CHECK(error_against(got.grad, grad) < tolerance);
          }
        }
      }
    }
  }
}

TEST_CASE("cross_entropy: when all targets are ignored the loss and its gradients are exactly 0") {
  const Result r = run_both(tensor_of({1, 2, 3}, {1, 3}, DType::f32), targets_of({-100}), {});
  CHECK(r.loss.item() == 0);
  CHECK(r.grad.to_vector<double>() == std::vector<double>{0, 0, 0});
}

TEST_CASE("cross_entropy: an ignored row counts for nothing") {
  const Result r = run_both(tensor_of({1, 2, 3, 4, 0, -1}, {2, 3}, DType::f32), targets_of({2, -100}), {});
  CHECK(r.loss.item() == Approx(0.40760596).epsilon(1e-6));
  CHECK(error_against(r.grad, {0.09003057, 0.24472847, -0.33475904, 0, 0, 0}) < 1e-7);
  // Not even with logits that no arithmetic survives.
  const Result bad = run_both(tensor_of({1, 2, 3, kInf, std::nan(""), -kInf}, {2, 3}, DType::f32), targets_of({2, -100}), {});
  CHECK(bad.loss.item() == r.loss.item());
  CHECK(same_bits(bad.grad, r.grad));
}

TEST_CASE("cross_entropy: the gradient of a huge logit keeps its precision") {
  const std::vector<double> small{0.5, -1, 2}, large{10000.5, 9999, 10002};
  const Result a = run_both(tensor_of(small, {1, 3}, DType::f32), targets_of({1}), {}),
               b = run_both(tensor_of(large, {1, 3}, DType::f32), targets_of({1}), {});
  CHECK(b.loss.item() == Approx(a.loss.item()).epsilon(1e-6));
  CHECK(error_against(b.grad, a.grad.to_vector<double>()) < 1e-6);
  CHECK(run_both(tensor_of({-3e38, 3e38}, {1, 2}, DType::f32), targets_of({1}), {}).loss.item() == 0);
}

TEST_CASE("cross_entropy: a maximum in a late block rescales the sum of the earlier ones") {
  std::vector<double> values(10000, 0.0);
  values[9999] = 50;
  values[4000] = 49;
  const Result r = run_both(tensor_of(values, {1, 10000}, DType::f64), targets_of({4000}), {});
  CHECK(r.loss.item() == Approx(std::log(1 + std::exp(-1.0) + 9998 * std::exp(-50.0)) + 1).epsilon(1e-14));
}

TEST_CASE("cross_entropy: masked logits are fine, and a row of -inf alone has an infinite loss but no NaN gradient") {
  const Result r = run_both(tensor_of({-kInf, 2, 3}, {1, 3}, DType::f32), targets_of({2}), {});
  CHECK(r.loss.item() == Approx(0.31326169).epsilon(1e-6));
  CHECK(error_against(r.grad, {0, 0.26894142, -0.26894142}) < 1e-7);
  const Result dead = run_both(tensor_of({-kInf, -kInf}, {1, 2}, DType::f32), targets_of({0}), {});
  CHECK(dead.loss.item() == kInf);
  CHECK(dead.grad.to_vector<double>() == std::vector<double>{-1, 0});
}

TEST_CASE("cross_entropy: a target out of range is named before anything is written") {
  const Tensor logits = zeros({3, 4}, DType::f32), out = full({}, 5, DType::f32), row_losses = full({3}, 5, DType::f32),
               grad = full({3, 4}, 5, DType::f32);
  for (std::int64_t bad : {std::int64_t{4}, std::int64_t{-1}, std::numeric_limits<std::int64_t>::max()}) {
    const Tensor targets = targets_of({0, bad, 3});
    const std::string message = message_of([&] {
      launch(CrossEntropyForward{.logits = logits,
                                 .targets = targets,
                                 .ignore_index = -100,
                                 .label_smoothing = 0,
                                 .reduction = Reduction::mean,
                                 .scale = 1,
                                 .out = out,
                                 .statistics = {},
                                 .row_losses = row_losses});
    });
    CHECK(message == concat("cross_entropy: target of row 1 must be 0 … 3 (V = 4) or ignore_index -100, got ", bad));
    CHECK_THROWS_AS(launch(CrossEntropyBackward{.grad_out = out,
                                                .logits = logits,
                                                .targets = targets,
                                                .statistics = zeros({3, 2}, DType::f32),
                                                .ignore_index = -100,
                                                .label_smoothing = 0,
                                                .reduction = Reduction::mean,
                                                .scale = 1,
                                                .out = grad}),
                    InvalidArgument);
  }
  for (const Tensor& t : {out, row_losses, grad}) CHECK(t.to_vector<double>() == std::vector<double>(std::size_t(t.numel()), 5.0));
  CHECK_THROWS_WITH(run_both(logits, targets_of({0, 1}), {}), "cross_entropy: targets must be [3], got [2]");
  CHECK_THROWS_AS(run_both(logits, targets_of({0, 1, 2}), {.label_smoothing = 1.5}), InvalidArgument);
}

TEST_CASE("cross_entropy: sums scaled by one over all tokens add up to the mean over all tokens") {
  const Tensor logits = random_tensor({4, 9}, DType::f64, 3, -3, 3), targets = targets_of({1, 2, -100, 4});
  const auto part = [&](std::int64_t begin, std::int64_t end) {
    const auto x = logits.to_vector<double>();
    const auto t = targets.to_vector<std::int64_t>();
    return run_both(tensor_of({x.begin() + begin * 9, x.begin() + end * 9}, {end - begin, 9}, DType::f64),
                    targets_of({t.begin() + begin, t.begin() + end}), {.reduction = Reduction::sum, .scale = 1.0 / 3});
  };
  const Result whole = run_both(logits, targets, {});
  CHECK(part(0, 3).loss.item() + part(3, 4).loss.item() == Approx(whole.loss.item()).epsilon(1e-14));
}

TEST_CASE("cross_entropy: results are the same on 1, 2 and 4 threads") {
  const Tensor logits = random_tensor({150, 3000}, DType::f32, 3, -3, 3);
  std::vector<std::int64_t> targets(150, 7);
  targets[9] = -100;
  for (Reduction reduction : {Reduction::mean, Reduction::none}) {
    CHECK(same_on_all_threads([&] {
      const Result r = run_both(logits, targets_of(targets), {.label_smoothing = 0.1, .reduction = reduction});
      return std::vector<Tensor>{r.loss, r.grad};
    }));
  }
}

TEST_CASE("count_correct: the first of equal logits is the answer, ignored rows count for nothing") {
  const auto count = [](const Tensor& logits, const Tensor& targets) {
    const Tensor out = empty({}, DType::i64);
    launch(CountCorrect{.logits = logits, .targets = targets, .ignore_index = -100, .out = out});
    return out.item();
  };
  const Tensor logits = tensor_of({1, 3, 2, 5, 5, 0, 0, 0, 9, -1, -2, -3}, {4, 3}, DType::f32);
  CHECK(count(logits, targets_of({1, 0, 2, 0})) == 4);
  CHECK(count(logits, targets_of({1, 1, 2, -100})) == 2);
  CHECK(count(logits, targets_of({0, 1, 1, 2})) == 0);
  CHECK(count(random_tensor({1000, 3}, DType::f64, 4), targets_of(std::vector<std::int64_t>(1000, 0))) +
            count(random_tensor({1000, 3}, DType::f64, 4), targets_of(std::vector<std::int64_t>(1000, 1))) +
            count(random_tensor({1000, 3}, DType::f64, 4), targets_of(std::vector<std::int64_t>(1000, 2))) ==
        1000);
}

TEST_CASE("cross_entropy: misaligned tensors, nothing written outside") {
  for (DType dtype : {DType::f32, DType::f64}) {
    for (std::int64_t classes : {1, 7, 33, 2049}) {
      const Tensor logits = random_tensor({3, classes}, dtype, 1), targets = targets_of({0, -100, classes - 1});
      const Result expected = run_both(logits, targets, {.label_smoothing = 0.1});
      const Guarded x(logits), loss({}, dtype), statistics({3, 2}, dtype), row_losses({3}, dtype), grad({3, classes}, dtype),
          grad_out(full({}, 1, dtype));
      launch(CrossEntropyForward{.logits = x.tensor,
                                 .targets = targets,
                                 .ignore_index = -100,
                                 .label_smoothing = 0.1,
                                 .reduction = Reduction::mean,
                                 .scale = 1,
                                 .out = loss.tensor,
                                 .statistics = statistics.tensor,
                                 .row_losses = row_losses.tensor});
      launch(CrossEntropyBackward{.grad_out = grad_out.tensor,
                                  .logits = x.tensor,
                                  .targets = targets,
                                  .statistics = statistics.tensor,
                                  .ignore_index = -100,
                                  .label_smoothing = 0.1,
                                  .reduction = Reduction::mean,
                                  .scale = 1,
                                  .out = grad.tensor});
      for (const Guarded* g : {&x, &loss, &statistics, &row_losses, &grad, &grad_out}) CHECK(g->is_intact());
      CHECK(same_bits(loss.tensor, expected.loss));
      CHECK(same_bits(grad.tensor, expected.grad));
    }
  }
}
