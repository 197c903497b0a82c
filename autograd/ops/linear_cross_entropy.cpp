#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/linear_cross_entropy.h>
#include <refrain/autograd/ops/product_weight.h>
#include <refrain/autograd/ops/row_chunks.h>

#include <array>

namespace refrain {

namespace {

struct LinearCrossEntropyOp {
  static constexpr std::string_view name = "linear_cross_entropy";
  struct Saved {
    SavedTensor hidden, weight, bias, targets, statistics;
    CrossEntropyOptions options;
    std::int64_t chunk_rows = 0;
  };

  static std::pair<std::array<Tensor, 2>, Saved> forward(Needs needs, const Tensor& hidden, const Tensor& weight, const Tensor& bias,
                                                         const Tensor& targets, const CrossEntropyOptions& options,
                                                         std::int64_t chunk_rows) {
    check_inputs(hidden, weight, targets, chunk_rows);
    const Device& device = hidden.device();
    const DType accumulator = accumulator_dtype(hidden.dtype());
    const bool is_summed = options.reduction != Reduction::none;
    const Chunks chunks(targets.numel(), chunk_rows);
    const Tensor loss = op_output(is_summed ? Shape{} : targets.shape(), accumulator, device);
    const Tensor correct = op_output({chunks.count()}, DType::i64, device);
    Tensor statistics;
    if (needs.any()) statistics = op_output({chunks.rows, 2}, accumulator, device);
    if (must_compute(loss) || must_compute(correct) || (statistics.defined() && must_compute(statistics))) {
      const Tensor row_losses = is_summed ? workspace({chunks.rows}, accumulator, device) : view::reshape(loss, {chunks.rows});
      const Tensor flat_targets = as_rows(targets, chunks.rows);
      for_each_logits(hidden, weight_as(name, weight, hidden.dtype()), bias, chunks,
                      [&](const Chunk& chunk, const Tensor&, const Tensor& logits) {
                        const Tensor chunk_targets = chunk.of(flat_targets);
                        launch(CrossEntropyForward{.logits = logits,
                                                   .targets = chunk_targets,
                                                   .ignore_index = options.ignore_index,
                                                   .label_smoothing = options.label_smoothing,
                                                   .reduction = Reduction::none,
                                                   .scale = is_summed ? 1 : options.scale,
                                                   .first_row = chunk.begin,
                                                   .out = chunk.of(row_losses),
                                                   .statistics = statistics.defined() ? chunk.of(statistics) : Tensor(),
                                                   .row_losses = {}});
                        launch(CountCorrect{.logits = logits,
                                            .targets = chunk_targets,
                                            .ignore_index = options.ignore_index,
                                            .out = view::select(correct, 0, chunk.index)});
                      });
      if (is_summed) {
        launch(ReduceLosses{.row_losses = row_losses,
                            .targets = flat_targets,
                            .ignore_index = options.ignore_index,
                            .reduction = options.reduction,
                            .scale = options.scale,
                            .out = loss});
      }
    }
    if (!needs.any()) return {{loss, correct}, {{}, {}, {}, {}, {}, options, chunk_rows}};
    return {{loss, correct}, {hidden, weight, bias, targets, statistics, options, chunk_rows}};
  }

  static Grads<4> backward(const Saved& saved, const std::array<Tensor, 2>& grad_outs, Needs needs) {
    const Tensor hidden = saved.hidden.get(), weight = saved.weight.get(), bias = saved.bias.get(), targets = saved.targets.get(),
                 statistics = saved.statistics.get();
    const CrossEntropyOptions& options = saved.options;
    const Device& device = hidden.device();
    const Chunks chunks(targets.numel(), saved.chunk_rows);
    const bool is_summed = options.reduction != Reduction::none;
    const Tensor flat_targets = as_rows(targets, chunks.rows);
    const Tensor row_grads = is_summed ? workspace({chunks.rows}, statistics.dtype(), device) : as_rows(grad_outs[0], chunks.rows);
    if (is_summed) {
      launch(SpreadLossGradient{.grad_out = grad_outs[0],
                                .targets = flat_targets,
                                .ignore_index = options.ignore_index,
                                .reduction = options.reduction,
                                .scale = options.scale,
                                .out = row_grads});
    }
    const Tensor grad_hidden = needs[0] ? empty(hidden.shape(), hidden.dtype(), device) : Tensor();
    const LinearGradients gradients(weight, needs[1], bias, needs[2], chunks);
    const Tensor product_weight = weight_as(name, weight, hidden.dtype());
    for_each_logits(hidden, product_weight, bias, chunks, [&](const Chunk& chunk, const Tensor& x, const Tensor& logits) {
      // The gradient goes where the logits are: nobody else sees them.
      launch(CrossEntropyBackward{.grad_out = chunk.of(row_grads),
                                  .logits = logits,
                                  .targets = chunk.of(flat_targets),
                                  .statistics = chunk.of(statistics),
                                  .ignore_index = options.ignore_index,
                                  .label_smoothing = options.label_smoothing,
                                  .reduction = Reduction::none,
                                  .scale = is_summed ? 1 : options.scale,
                                  .out = logits});
      gradients.add(chunk, logits, x);
      if (needs[0]) {
        const Tensor out = chunk.of(as_rows(grad_hidden, chunks.rows, hidden.dim(-1)));
        launch(LinearBackwardInput{.grad_out = logits, .weight = product_weight, .out = out,
                                   .workspace = product_workspace(device, chunk.rows, hidden.dim(-1), product_weight.dim(0))});
      }
    });
    return {grad_hidden, gradients.weight(), gradients.bias(), Tensor()};
  }

 private:
  static void check_inputs(const Tensor& hidden, const Tensor& weight, const Tensor& targets, std::int64_t chunk_rows) {
    check(weight.num_dims() == 2, name, ": weight must be [classes, in], got ", weight.shape());
    check(hidden.num_dims() >= 1 && hidden.dim(-1) == weight.dim(1), name, ": hidden must be [..., ", weight.dim(1), "], got ",
          hidden.shape());
    Shape rows = hidden.shape();
    rows.erase(rows.size() - 1);
    check(targets.shape() == rows, name, ": targets must be ", rows, ", got ", targets.shape());
    check(chunk_rows >= 0, name, ": expected chunk_rows >= 0, got ", chunk_rows);
  }

  // Calls f(chunk, its rows of hidden, their logits) for one chunk after the other; weight in the products' dtype.
  template <class F>
  static void for_each_logits(const Tensor& hidden, const Tensor& weight, const Tensor& bias, const Chunks& chunks, F&& f) {
    const std::int64_t V = weight.dim(0), D = weight.dim(1);
    const Tensor x = as_rows(hidden, chunks.rows, D), packed_bias = bias.defined() ? contiguous_values(bias) : bias;
    const Tensor buffer = workspace({chunks.size, V}, hidden.dtype(), hidden.device());
    for (std::int64_t i = 0; i < chunks.count(); ++i) {
      const Chunk chunk = chunks[i];
      const Tensor chunk_x = chunk.of(x), logits = chunk.in(buffer);
      launch(LinearForward{.x = chunk_x, .weight = weight, .bias = packed_bias, .out = logits, .pre_activation = {},
                           .workspace = product_workspace(x.device(), chunk.rows, V, D)});
      f(chunk, chunk_x, logits);
    }
  }
};

}  // namespace

LinearCrossEntropy linear_cross_entropy(const Tensor& hidden, const Tensor& weight, const Tensor& bias, const Tensor& targets,
                                        const CrossEntropyOptions& options, std::int64_t chunk_rows) {
  const std::array<Tensor, 2> results = apply<LinearCrossEntropyOp>(hidden, weight, bias, targets, options, chunk_rows);
  LinearCrossEntropy result{results[0], 0};
  const Tensor& counts = results[1];
  if (counts.has_bytes())
    for (const std::int64_t count : counts.to_vector<std::int64_t>()) result.correct += count;
  return result;
}

}  // namespace refrain
