// What a loss over chunks of rows is made of: gradients over the logits, losses of rows that are reduced afterwards, and
// weight gradients that are added to.
#include <refrain/kernels/loss/loss.h>
#include <refrain/kernels/matmul/matmul.h>
#include <refrain/tests/support/half.h>
#include <refrain/tests/support/values.h>

using namespace refrain;

namespace {

Tensor some_targets(std::int64_t rows, std::int64_t classes) {
  std::vector<std::int64_t> values;
  for (std::int64_t r = 0; r < rows; ++r) values.push_back(r % 5 == 3 ? -1 : r * 37 % classes);
  return from_values(values, {rows});
}

struct Loss {
  Tensor loss, statistics, rows;
};

Loss forward(const Tensor& logits, const Tensor& targets, double smoothing, Reduction reduction, double scale) {
  const DType wide = accumulator_dtype(logits.dtype());
  Loss r{empty(reduction == Reduction::none ? targets.shape() : Shape{}, wide), empty({targets.dim(0), 2}, wide),
         empty(targets.shape(), wide)};
  launch(CrossEntropyForward{.logits = logits,
                             .targets = targets,
                             .ignore_index = -1,
                             .label_smoothing = smoothing,
                             .reduction = reduction,
                             .scale = scale,
                             .out = r.loss,
                             .statistics = r.statistics,
                             .row_losses = r.rows});
  return r;
}

}  // namespace

TEST_CASE("cross_entropy_backward: over the logits it writes the bits it writes elsewhere") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    for (const std::int64_t classes : {1, 2, 17, 33, 1000}) {
      const Tensor logits = random_tensor({9, classes}, dtype, 3, -8, 8), targets = some_targets(9, classes);
      const Loss loss = forward(logits, targets, 0.1, Reduction::mean, 0.5);
      const Tensor elsewhere = empty_like(logits), in_place = clone(logits);
      for (const Tensor& out : {elsewhere, in_place}) {
        launch(CrossEntropyBackward{.grad_out = full({}, 3, loss.loss.dtype()),
                                    .logits = is_same(out, in_place) ? in_place : logits,
                                    .targets = targets,
                                    .statistics = loss.statistics,
                                    .ignore_index = -1,
                                    .label_smoothing = 0.1,
                                    .reduction = Reduction::mean,
                                    .scale = 0.5,
                                    .out = out});
      }
      INFO(dtype << ' ' << classes);
      CHECK(same_bits(elsewhere, in_place));
    }
  }
}

TEST_CASE("reduce_losses and spread_loss_gradient: rows by themselves give the bits of the whole") {
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16}) {
    for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
      for (const std::int64_t rows : {0, 1, 4, 33}) {
        const Tensor logits = random_tensor({rows, 20}, dtype, 3, -8, 8), targets = some_targets(rows, 20);
        const Loss whole = forward(logits, targets, 0.1, reduction, 0.7), single = forward(logits, targets, 0.1, Reduction::none, 1);
        const DType wide = whole.loss.dtype();
        const Tensor loss = empty({}, wide), row_grads = empty({rows}, wide), grad_out = full({}, 1.3, wide);
        launch(ReduceLosses{
            .row_losses = single.loss, .targets = targets, .ignore_index = -1, .reduction = reduction, .scale = 0.7, .out = loss});
        launch(SpreadLossGradient{
            .grad_out = grad_out, .targets = targets, .ignore_index = -1, .reduction = reduction, .scale = 0.7, .out = row_grads});
        INFO(dtype << ' ' << name_of(reduction) << ' ' << rows);
        CHECK(same_bits(loss, whole.loss));
        CHECK(same_bits(single.statistics, whole.statistics));
        const Tensor expected = empty_like(logits), got = empty_like(logits);
        launch(CrossEntropyBackward{.grad_out = grad_out,
                                    .logits = logits,
                                    .targets = targets,
                                    .statistics = whole.statistics,
                                    .ignore_index = -1,
                                    .label_smoothing = 0.1,
                                    .reduction = reduction,
                                    .scale = 0.7,
                                    .out = expected});
        launch(CrossEntropyBackward{.grad_out = row_grads,
                                    .logits = logits,
                                    .targets = targets,
                                    .statistics = whole.statistics,
                                    .ignore_index = -1,
                                    .label_smoothing = 0.1,
                                    .reduction = Reduction::none,
                                    .scale = 1,
                                    .out = got});
        CHECK(same_bits(got, expected));
      }
    }
  }
  const Tensor x = zeros({3}, DType::f32), t = some_targets(3, 4), out = zeros({}, DType::f32);
  CHECK(message_of([&] {
          launch(ReduceLosses{.row_losses = x, .targets = t, .ignore_index = -1, .reduction = Reduction::none, .scale = 1, .out = out});
        }) == "reduce_losses: reduction must be mean or sum, got none");
  CHECK(message_of([&] {
          launch(SpreadLossGradient{.grad_out = x, .targets = t, .ignore_index = -1, .reduction = Reduction::sum, .scale = 1, .out = x});
        }) == "spread_loss_gradient: grad_out must be [], got [3]");
}

TEST_CASE("cross_entropy: rows that are part of a longer batch are numbered as in that") {
  const Tensor logits = zeros({2, 3}, DType::f32), targets = from_values(std::vector<std::int64_t>{0, 3}, {2});
  CHECK(message_of([&] {
          launch(CrossEntropyForward{.logits = logits,
                                     .targets = targets,
                                     .ignore_index = -1,
                                     .label_smoothing = 0,
                                     .reduction = Reduction::none,
                                     .scale = 1,
                                     .first_row = 40,
                                     .out = zeros({2}, DType::f32),
                                     .statistics = {},
                                     .row_losses = {}});
        }) == "cross_entropy: target of row 41 must be 0 … 2 (V = 3) or ignore_index -1, got 3");
}

TEST_CASE("linear_backward_weight: with beta 1 it adds to what is there, in every engine and in 16 bits") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const DType wide = accumulator_dtype(dtype);
    for (const GemmEngine engine : {GemmEngine::automatic, GemmEngine::builtin, GemmEngine::eigen, GemmEngine::onednn, GemmEngine::amx}) {
      if (engine == GemmEngine::onednn && (!has_onednn() || dtype == DType::f64)) continue;
      if (engine == GemmEngine::amx && (!has_amx() || dtype != DType::bf16)) continue;
      for (const std::int64_t rows : {0, 1, 40, 3000}) {  // the last is split along the rows
        const std::int64_t N = 30, K = 17, size = LinearBackwardWeight::scratch_size(DeviceKind::cpu, rows, N, K, wide);
        const Tensor g = random_tensor({rows, N}, dtype, 1), x = random_tensor({rows, K}, dtype, 2),
                     scratch = size > 0 ? empty({size}, wide) : Tensor();
        const Tensor start = random_tensor({N, K}, wide, 3), out = clone(start), part = empty({N, K}, wide), bias = full({N}, 77, wide),
                     again = empty({N}, wide);
        launch(LinearBackwardWeight{.grad_out = g, .x = x, .out = part, .grad_bias = again, .scratch = scratch, .engine = engine});
        launch(LinearBackwardWeight{.grad_out = g, .x = x, .out = out, .grad_bias = bias, .scratch = scratch, .beta = 1, .engine = engine});
        std::vector<double> expected = part.to_vector<double>();
        const std::vector<double> from = start.to_vector<double>();
        for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += from[i];
        INFO(dtype << " engine " << int(engine) << " rows " << rows);
        CHECK(error_against(out, expected) <= double(rows + 2) * 2 * roundoff_of(wide));
        CHECK(same_bits(bias, again));  // a bias's gradient is written, not added to
      }
    }
  }
  const Tensor half = zeros({2, 2}, DType::f16);
  CHECK(message_of([&] {
          launch(LinearBackwardWeight{.grad_out = half, .x = half, .out = half, .grad_bias = {}, .scratch = {}, .beta = 1});
        }) == "linear_backward_weight: out must be f32 when it is added to, got f16");
}
