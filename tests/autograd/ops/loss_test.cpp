// Losses as differentiable ops.
#include <refrain/autograd/ops/loss.h>
#include <refrain/autograd/ops/softmax.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/gradcheck.h>
#include <refrain/tests/support/values.h>

using namespace refrain;
using testing::gradcheck;
using testing::test_values;

namespace {

Tensor targets_of(const std::vector<std::int64_t>& values) { return from_values(values, {std::int64_t(values.size())}); }

Tensor leaf(const Tensor& t) {
  set_requires_grad(t);
  return t;
}

}  // namespace

TEST_CASE("cross_entropy op: gradients match differences") {
  for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    for (double smoothing : {0.0, 0.1}) {
      const CrossEntropyOptions options{.label_smoothing = smoothing, .reduction = reduction, .scale = 0.7};
      gradcheck([=](auto in) { return cross_entropy(in[0], targets_of({2, -100, 0, 4}), options); }, {test_values({4, 5}, DType::f64, 1)});
      gradcheck([=](auto in) { return cross_entropy(in[0], targets_of({0}), options); }, {test_values({1, 1}, DType::f64, 1)});
      gradcheck([=](auto in) { return cross_entropy(in[0], targets_of({32}), options); }, {test_values({1, 33}, DType::f64, 1)});
      const Tensor targets = from_values(std::vector<std::int64_t>{1, 0, 2, 2, 1, 0}, {2, 3});
      gradcheck([=](auto in) { return cross_entropy(in[0], targets, options); }, {test_values({2, 3, 3}, DType::f64, 1)});
      gradcheck(
          [=](auto in) {
            return cross_entropy(in[0], targets_of({1, 2, 0}), options);
          },
          {view::transpose(test_values({4, 3}, DType::f64, 1), 0, 1)});
    }
  }
  CHECK(cross_entropy(zeros({0, 3}, DType::f32), from_values(std::vector<std::int64_t>{}, {0})).item() == 0);
}

TEST_CASE("cross_entropy op: it equals minus the log-softmax at the target") {
  const Tensor logits = test_values({3, 7}, DType::f64, 1);
  const auto log_p = log_softmax(logits, 1).to_vector<double>();
  CHECK(cross_entropy(logits, targets_of({1, 6, 0})).item() == Approx(-(log_p[1] + log_p[13] + log_p[14]) / 3).epsilon(1e-14));
}

TEST_CASE("cross_entropy op: all labels ignored give loss 0 and gradients exactly 0") {
  const Tensor logits = leaf(tensor_of({1, 2, 3}, {1, 3}, DType::f32));
  const Tensor loss = cross_entropy(logits, targets_of({-100}));
  CHECK(loss.item() == 0);
  backward(loss);
  CHECK(grad_of(logits).to_vector<double>() == std::vector<double>{0, 0, 0});
}

TEST_CASE("cross_entropy op: one ignored row of two") {
  const Tensor logits = leaf(tensor_of({1, 2, 3, 4, 0, -1}, {2, 3}, DType::f32));
  const Tensor loss = cross_entropy(logits, targets_of({2, -100}));
  CHECK(loss.item() == Approx(0.40760596).epsilon(1e-6));
  backward(loss);
  CHECK(error_against(grad_of(logits), {0.09003057, 0.24472847, -0.33475904, 0, 0, 0}) < 1e-7);
}

TEST_CASE("cross_entropy op: micro-batches weighted by their tokens give the loss and gradients of the whole batch") {
  // Every token of the first micro-batch has loss log(4); that of the second another one.
  const Tensor whole = leaf(test_values({4, 4}, DType::f64, 1)), targets = targets_of({0, 1, 2, 3});
  backward(cross_entropy(whole, targets));
  std::vector<double> grads;
  double loss = 0;
  for (const auto& [begin, end] : std::vector<std::pair<int, int>>{{0, 3}, {3, 4}}) {
    const Tensor part = leaf(clone(view::slice(whole.without_autograd(), 0, begin, end))),
                 part_targets = clone(view::slice(targets, 0, begin, end));
    const Tensor part_loss = cross_entropy(part, part_targets, {.reduction = Reduction::sum, .scale = 1 / double(count_targets(targets))});
    loss += part_loss.item();
    backward(part_loss);
    for (double g : grad_of(part).to_vector<double>()) grads.push_back(g);
  }
  CHECK(loss == Approx(cross_entropy(whole.without_autograd(), targets).item()).epsilon(1e-14));
  CHECK(error_against(grad_of(whole), grads) < 1e-15);
}

TEST_CASE("cross_entropy op: token losses 1, 2, 3 and 10 in two micro-batches make 4, not the mean of means 6") {
  // With two classes and logits (0, d) the loss at class 0 is log(1 + exp(d)).
  const auto logits_of = [](const std::vector<double>& losses) {
    std::vector<double> logits;
    for (double loss : losses) {
      logits.push_back(0);
      logits.push_back(std::log(std::expm1(loss)));
    }
    return leaf(tensor_of(logits, {std::int64_t(losses.size()), 2}, DType::f64));
  };
  const Tensor a = logits_of({1, 2, 3}), b = logits_of({10});
  const CrossEntropyOptions options{.reduction = Reduction::sum, .scale = 1.0 / 4};
  const Tensor loss_a = cross_entropy(a, targets_of({0, 0, 0}), options), loss_b = cross_entropy(b, targets_of({0}), options);
  CHECK(loss_a.item() + loss_b.item() == Approx(4).epsilon(1e-14));
  backward(loss_a);
  backward(loss_b);
  // Every token weighs a quarter: its gradient is (probability - 1) / 4 at the target.
  const auto grad_a = grad_of(a).to_vector<double>();
  for (std::size_t i = 0; i < 3; ++i) CHECK(grad_a[2 * i] == Approx(std::expm1(-double(i + 1)) / 4).epsilon(1e-12));
  CHECK(grad_of(b).to_vector<double>()[0] == Approx(std::expm1(-10.0) / 4).epsilon(1e-12));
}

TEST_CASE("cross_entropy op: no second buffer of the logits' size in forward, one gradient in backward") {
  const Device device = Device::new_cpu();
  const std::int64_t rows = 16, classes = 4096, bytes = rows * classes * 4;
  const Tensor logits = leaf(full({rows, classes}, 0.5, DType::f32, device));
  const Tensor targets = full({rows}, 3, DType::i64, device);
  device.reset_peak();
  const std::int64_t before = device.live_bytes();
  const Tensor loss = cross_entropy(logits, targets);
  CHECK(device.peak_bytes() - before < bytes / 100);
  backward(loss);
  CHECK(device.peak_bytes() - before < bytes + bytes / 100);
}

TEST_CASE("cross_entropy op: a bad target names row, value and number of classes") {
  CHECK(message_of([] { cross_entropy(zeros({2, 3}, DType::f32), targets_of({0, 3})); }) ==
        "cross_entropy: target of row 1 must be 0 … 2 (V = 3) or ignore_index -100, got 3");
}

TEST_CASE("mse_loss op: gradients match differences for both sides") {
  for (Reduction reduction : {Reduction::mean, Reduction::sum, Reduction::none}) {
    for (const Shape& shape : {Shape{}, Shape{1}, Shape{3, 5}, Shape{33}}) {
      gradcheck([=](auto in) { return mse_loss(in[0], in[1], reduction); },
                {test_values(shape, DType::f64, 1), test_values(shape, DType::f64, 2)});
    }
  }
  gradcheck([](auto in) { return mse_loss(in[0], in[1]); },
            {view::transpose(test_values({2, 3}, DType::f64, 1), 0, 1), test_values({3, 2}, DType::f64, 2)});
  CHECK_THROWS_AS(mse_loss(zeros({2}, DType::f32), zeros({3}, DType::f32)), InvalidArgument);
}

TEST_CASE("count_correct and count_targets: plain numbers, also on a plan device") {
  const Tensor logits = tensor_of({1, 2, 2, 1, 0, 3}, {3, 2}, DType::f32), targets = targets_of({1, 1, -100});
  CHECK(count_correct(logits, targets) == 1);
  CHECK(count_targets(targets) == 2);
  const Device plan = Device::plan();
  CHECK(count_correct(empty({3, 2}, DType::f32, plan), empty({3}, DType::i64, plan)) == 0);
  CHECK(count_targets(empty({3}, DType::i64, plan)) == 3);
}
