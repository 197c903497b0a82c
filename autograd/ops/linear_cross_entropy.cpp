#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/linear_cross_entropy.h>
#include <refrain/autograd/ops/product_weight.h>
#include <refrain/core/view.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/kernels/matmul/matmul.h>

#include <algorithm>
#include <array>

namespace refrain {

namespace {

Tensor workspace(const Shape& shape, DType dtype, const Device& device) {
  const KindScope kind(MemoryKind::workspace);
  return empty(shape, dtype, device);
}

// t, whose leading dims are the rows, as [rows, …].
Tensor as_rows(const Tensor& t, std::int64_t rows, std::int64_t width) { return view::reshape(contiguous_values(t), {rows, width}); }
Tensor as_rows(const Tensor& t, std::int64_t rows) { return view::reshape(contiguous_values(t), {rows}); }

// A stretch of rows, and what belongs to it of a tensor of all rows.
struct Chunk {
  std::int64_t index, begin, rows;
  Tensor of(const Tensor& t) const { return view::slice(t, 0, begin, begin + rows); }
};

// How rows are cut: by their number and chunk_rows alone.
struct Chunks {
  std::int64_t rows, size;
  Chunks(const Tensor& targets, std::int64_t chunk_rows)
      : rows(targets.numel()), size(chunk_rows == 0 ? rows : std::min(rows, chunk_rows)) {}
  // At least one, so that results of no rows are written too.
  std::int64_t count() const { return rows == 0 ? 1 : (rows + size - 1) / size; }
  Chunk operator[](std::int64_t i) const { return {i, i * size, std::min(size, rows - i * size)}; }
};

// A sum of chunks' parts: the first is written, the others are added. 16-bit sums of several parts are kept in f32.
class GradientSum {
 public:
  GradientSum() = default;
  GradientSum(const Shape& shape, DType dtype, const Device& device, bool is_several)
      : result_(empty(shape, dtype, device)), sum_(result_) {
    if (is_several && is_16_bit(dtype)) sum_ = workspace(shape, DType::f32, device);
  }
  const Tensor& sum() const { return sum_; }
  Tensor finish() const {
    if (!is_same(sum_, result_)) launch(Convert{.x = sum_, .out = result_});
    return result_;
  }

 private:
  Tensor result_, sum_;
};

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
    const Chunks chunks(targets, chunk_rows);
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
    const Chunks chunks(targets, saved.chunk_rows);
    const std::int64_t V = weight.dim(0), D = weight.dim(1);
    const bool is_summed = options.reduction != Reduction::none, is_several = chunks.count() > 1;
    const Tensor flat_targets = as_rows(targets, chunks.rows);
    Tensor row_grads = is_summed ? workspace({chunks.rows}, statistics.dtype(), device) : as_rows(grad_outs[0], chunks.rows);
    if (is_summed) {
      launch(SpreadLossGradient{.grad_out = grad_outs[0],
                                .targets = flat_targets,
                                .ignore_index = options.ignore_index,
                                .reduction = options.reduction,
                                .scale = options.scale,
                                .out = row_grads});
    }
    Tensor grad_hidden, scratch, bias_part;
    GradientSum grad_weight, grad_bias;
    if (needs[0]) grad_hidden = empty(hidden.shape(), hidden.dtype(), device);
    if (needs[1]) {
      grad_weight = GradientSum({V, D}, weight.dtype(), device, is_several);
      const std::int64_t size =
          std::max(scratch_size(chunks[0], grad_weight.sum()), scratch_size(chunks[chunks.count() - 1], grad_weight.sum()));
      if (size > 0) scratch = workspace({size}, accumulator_dtype(grad_weight.sum().dtype()), device);
    }
    if (needs[2]) {
      grad_bias = GradientSum({V}, bias.dtype(), device, is_several);
      if (is_several) bias_part = workspace({V}, grad_bias.sum().dtype(), device);
    }
    const bool is_one_pass = needs[1] && needs[2] && grad_bias.sum().dtype() == grad_weight.sum().dtype();
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
      const bool is_first = chunk.index == 0;
      const Tensor bias_out = is_first ? grad_bias.sum() : bias_part;
      if (needs[1]) {
        const std::int64_t size = scratch_size(chunk, grad_weight.sum());
        launch(LinearBackwardWeight{.grad_out = logits,
                                    .x = x,
                                    .out = grad_weight.sum(),
                                    .grad_bias = is_one_pass ? bias_out : Tensor(),
                                    .scratch = size > 0 ? view::slice(scratch, 0, 0, size) : Tensor(),
                                    .beta = is_first ? 0.0 : 1.0});
      }
      if (needs[2]) {
        if (!is_one_pass) launch(LinearBackwardBias{.grad_out = logits, .out = bias_out});
        if (!is_first) launch(Binary{.op = BinaryOp::add, .a = grad_bias.sum(), .b = bias_out, .out = grad_bias.sum()});
      }
      if (needs[0])
        launch(LinearBackwardInput{.grad_out = logits, .weight = product_weight, .out = chunk.of(as_rows(grad_hidden, chunks.rows, D))});
    });
    return {grad_hidden, needs[1] ? grad_weight.finish() : Tensor(), needs[2] ? grad_bias.finish() : Tensor(), Tensor()};
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

  static std::int64_t scratch_size(const Chunk& chunk, const Tensor& sum) {
    return LinearBackwardWeight::scratch_size(chunk.rows, sum.dim(0), sum.dim(1), sum.dtype());
  }

  // Calls f(chunk, its rows of hidden, their logits) for one chunk after the other; weight in the products' dtype.
  template <class F>
  static void for_each_logits(const Tensor& hidden, const Tensor& weight, const Tensor& bias, const Chunks& chunks, F&& f) {
    const std::int64_t V = weight.dim(0), D = weight.dim(1);
    const Tensor x = as_rows(hidden, chunks.rows, D), packed_bias = bias.defined() ? contiguous_values(bias) : bias;
    const Tensor buffer = workspace({chunks.size, V}, hidden.dtype(), hidden.device());
    for (std::int64_t i = 0; i < chunks.count(); ++i) {
      const Chunk chunk = chunks[i];
      const Tensor chunk_x = chunk.of(x), logits = view::slice(buffer, 0, 0, chunk.rows);
      launch(LinearForward{.x = chunk_x, .weight = weight, .bias = packed_bias, .out = logits, .pre_activation = {}});
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
  for (std::int64_t i = 0; counts.has_bytes() && i < counts.numel(); ++i) result.correct += counts.data<std::int64_t>()[i];
  return result;
}

}  // namespace refrain
