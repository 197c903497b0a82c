// Layer norm and batch norm as differentiable ops.
#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/norm.h>
#include <refrain/autograd/precision.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/view.h>
#include <refrain/tests/support/gradcheck.h>
#include <refrain/tests/support/values.h>

using namespace refrain;
using testing::gradcheck;
using testing::test_values;

namespace {

Tensor leaf(const Tensor& t) {
  set_requires_grad(t);
  return t;
}

}  // namespace

TEST_CASE("layer_norm op: gradients match differences") {
  for (const Shape& shape : {Shape{1, 2}, Shape{3, 5}, Shape{2, 3, 7}, Shape{33}, Shape{4, 33}, Shape{0, 4}}) {
    const Tensor x = test_values(shape, DType::f64, 1), weight = test_values({shape.back()}, DType::f64, 2),
                 bias = test_values({shape.back()}, DType::f64, 3);
    gradcheck([](auto in) { return layer_norm(in[0], in[1], in[2], 1e-5); }, {x, weight, bias}, {.tolerance = 1e-5});
    gradcheck([](auto in) { return layer_norm(in[0], {}, {}, 1e-5); }, {x}, {.tolerance = 1e-5});
    gradcheck([](auto in) { return layer_norm(in[0], in[1], {}, 1e-3); }, {x, weight});
    gradcheck([](auto in) { return layer_norm(in[0], {}, in[1], 1e-3); }, {x, bias});
  }
  gradcheck([](auto in) { return layer_norm(in[0], {}, {}, 1.0); }, {test_values({3, 1}, DType::f64, 1)});
}

TEST_CASE("layer_norm op: strided inputs") {
  const Tensor base = test_values({6, 5}, DType::f64, 1);
  gradcheck([](auto in) { return layer_norm(in[0], in[1], in[2], 1e-3); },
            {view::transpose(base, 0, 1), view::slice(test_values({12}, DType::f64, 2), 0, 0, 12, 2), test_values({6}, DType::f64, 3)});
}

TEST_CASE("layer_norm op: only the wanted gradients come") {
  const Tensor x = test_values({3, 4}, DType::f32, 1), weight = leaf(test_values({4}, DType::f32, 2)),
               bias = test_values({4}, DType::f32, 3);
  backward(layer_norm(x, weight, bias, 1e-5), {.grad_out = full({3, 4}, 1, DType::f32)});
  CHECK(grad_of(weight).defined());
  CHECK_FALSE(grad_of(x).defined());
  CHECK_FALSE(grad_of(bias).defined());
}

TEST_CASE("layer_norm op: a replay inside a region gives the same bits") {
  const Tensor x = leaf(test_values({20, 31}, DType::f32, 1)), weight = leaf(test_values({31}, DType::f32, 2)),
               bias = leaf(test_values({31}, DType::f32, 3));
  const auto block = [&](const Tensor& t) { return layer_norm(layer_norm(t, weight, bias, 1e-5), weight, bias, 1e-5); };
  const auto grads = [&](bool in_region) {
    for (const Tensor& t : {x, weight, bias}) clear_grad(t);
    const Tensor y = in_region ? checkpoint(block, x) : block(x);
    backward(y, {.grad_out = test_values({20, 31}, DType::f32, 4)});
    return std::vector<Tensor>{y, grad_of(x), grad_of(weight), grad_of(bias)};
  };
  const auto plain = grads(false), replayed = grads(true);
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], replayed[i]));
}

TEST_CASE("batch_norm2d: gradients match differences in training and evaluation") {
  for (const Shape& shape : {Shape{2, 3, 2, 2}, Shape{5, 2, 1, 3}, Shape{4, 3}, Shape{1, 1, 3, 3}}) {
    const Shape channels{shape[1]};
    const Tensor x = test_values(shape, DType::f64, 1), weight = test_values(channels, DType::f64, 2),
                 bias = test_values(channels, DType::f64, 3);
    const RunningStatistics running{full(channels, 0.1, DType::f64), full(channels, 0.7, DType::f64)};
    gradcheck([](auto in) { return batch_norm2d(in[0], in[1], in[2], {}, {.eps = 1e-3}); }, {x, weight, bias});
    gradcheck([](auto in) { return batch_norm2d(in[0], {}, {}, {}, {.eps = 1e-3}); }, {x});
    gradcheck([&](auto in) { return batch_norm2d(in[0], in[1], in[2], running, {.training = false}); }, {x, weight, bias});
  }
  const Tensor swapped = view::permute(test_values({3, 4, 2, 5}, DType::f64, 1), {0, 3, 1, 2});
  gradcheck([](auto in) { return batch_norm2d(in[0], {}, {}, {}, {.eps = 1e-3}); }, {swapped});
}

TEST_CASE("batch_norm2d: running statistics move once a step, also through a replayed region") {
  const Tensor x = leaf(test_values({4, 2, 3, 3}, DType::f32, 1)), weight = leaf(full({2}, 1, DType::f32)),
               bias = leaf(zeros({2}, DType::f32));
  const auto run = [&](bool in_region, const RunningStatistics& running) {
    for (const Tensor& t : {x, weight, bias}) clear_grad(t);
    const auto block = [&](const Tensor& t) {
      const Tensor once = batch_norm2d(t, weight, bias, running, {});
      return batch_norm2d(once, weight, bias, {}, {});
    };
    const Tensor y = in_region ? checkpoint(block, x) : block(x);
    backward(y, {.grad_out = test_values({4, 2, 3, 3}, DType::f32, 4)});
    return std::vector<Tensor>{y, grad_of(x), grad_of(weight), grad_of(bias), running.mean, running.var};
  };
  const auto fresh = [] { return RunningStatistics{zeros({2}, DType::f32), full({2}, 1, DType::f32)}; };
  const auto plain = run(false, fresh()), replayed = run(true, fresh());
  for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], replayed[i]));
  CHECK(plain[4].to_vector<double>() != std::vector<double>{0, 0});
}

TEST_CASE("batch_norm2d: evaluation uses the running statistics and leaves them alone") {
  const RunningStatistics running{from_values(std::vector<float>{1, -1}, {2}), from_values(std::vector<float>{4, 1}, {2})};
  const Tensor y = batch_norm2d(full({1, 2, 1, 1}, 3, DType::f32), {}, {}, running, {.eps = 0, .training = false});
  CHECK(y.to_vector<double>() == std::vector<double>{1, 4});
  CHECK(running.mean.to_vector<double>() == std::vector<double>{1, -1});
  CHECK(message_of([] { batch_norm2d(zeros({1, 2, 1, 1}, DType::f32), {}, {}, {}, {.training = false}); }) ==
        "batch_norm: evaluation needs running statistics, got none");
}

TEST_CASE("batch_norm2d: one value per channel is a clear error in training, layer norm of one row is finite") {
  CHECK(message_of([] { batch_norm2d(zeros({1, 3, 1, 1}, DType::f32), {}, {}, {}, {}); }) ==
        "batch_norm: expected more than one value per channel when training, got x [1, 3, 1, 1]");
  for (double v : layer_norm(test_values({1, 3}, DType::f32, 1), {}, {}, 1e-5).to_vector<double>()) CHECK(std::isfinite(v));
}

TEST_CASE("layer_norm and batch_norm2d: a mixed mode writes 16 bits from f32, and gradients keep their inputs' dtypes") {
  for (const auto& [mode, half] : {std::pair{Precision::f16_mixed, DType::f16}, std::pair{Precision::bf16_mixed, DType::bf16}}) {
    for (const DType input : {DType::f32, half}) {
      const Tensor x = leaf(test_values({6, 5}, input, 1)), weight = leaf(test_values({5}, DType::f32, 2)),
                   bias = leaf(test_values({5}, DType::f32, 3));
      for (const bool is_layer_norm : {true, false}) {
        for (const Tensor& t : {x, weight, bias}) clear_grad(t);
        Tensor y;
        {
          const PrecisionScope scope(mode);
          const RunningStatistics running{zeros({5}, DType::f32), full({5}, 1, DType::f32)};
          y = is_layer_norm ? layer_norm(x, weight, bias, 1e-5) : batch_norm2d(x, weight, bias, running, {});
        }
        CHECK(y.dtype() == half);
        backward(y, {.grad_out = full({6, 5}, 1, half)});
        CHECK(grad_of(x).dtype() == input);
        CHECK(grad_of(weight).dtype() == DType::f32);
        CHECK(grad_of(bias).to_vector<double>() == std::vector<double>(5, 6.0));
      }
    }
  }
}

TEST_CASE("layer_norm op: a 16-bit output is rebuilt, and a region replayed, with the same bits") {
  for (const DType dtype : {DType::f16, DType::bf16}) {
    for (const bool is_mixed : {false, true}) {
      const DType wide = is_mixed ? DType::f32 : dtype;
      const Tensor x = leaf(test_values({20, 31}, wide, 1)), weight = leaf(test_values({31}, wide, 2)),
                   bias = leaf(test_values({31}, wide, 3));
      // Two ops read the first output, which neither keeps.
      const auto block = [&](const Tensor& t) {
        const Tensor once = layer_norm(t, weight, bias, 1e-5);
        return layer_norm(once, weight, bias, 1e-5) + batch_norm2d(once, weight, bias, {}, {});
      };
      const auto grads = [&](bool in_region) {
        for (const Tensor& t : {x, weight, bias}) clear_grad(t);
        Tensor y;
        {
          const PrecisionScope scope(!is_mixed ? Precision::f32_true : dtype == DType::f16 ? Precision::f16_mixed : Precision::bf16_mixed);
          y = in_region ? checkpoint(block, x) : block(x);
        }
        CHECK(y.dtype() == dtype);
        backward(y, {.grad_out = test_values({20, 31}, dtype, 4)});
        return std::vector<Tensor>{y, grad_of(x), grad_of(weight), grad_of(bias)};
      };
      const auto plain = grads(false), replayed = grads(true);
      for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same_bits(plain[i], replayed[i]));
    }
  }
}
