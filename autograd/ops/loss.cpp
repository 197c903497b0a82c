#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/loss.h>

namespace refrain {

namespace {

struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  struct Saved {
    SavedTensor logits, targets, statistics;
    CrossEntropyOptions options;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
    const DType accumulator = accumulator_dtype(logits.dtype());
    const bool is_summed = options.reduction != Reduction::none;
    const Tensor loss = op_output(is_summed ? Shape{} : targets.shape(), accumulator, logits.device());
    Tensor statistics, row_losses;
    if (needs[0]) {
      Shape pairs = targets.shape();
      pairs.push_back(2);
      statistics = op_output(pairs, accumulator, logits.device());
    }
    if (is_summed) {
      KindScope kind(MemoryKind::workspace);
      row_losses = empty(targets.shape(), accumulator, logits.device());
    }
    launch(CrossEntropyForward{.logits = contiguous_values(logits), .targets = contiguous_values(targets), .ignore_index = options.ignore_index,
                               .label_smoothing = options.label_smoothing, .reduction = options.reduction, .scale = options.scale,
                               .out = loss, .statistics = statistics, .row_losses = row_losses});
    if (!needs[0]) return {loss, {{}, {}, {}, options}};
    return {loss, {logits, targets, statistics, options}};
  }

  static Grads<2> backward(const Saved& saved, const Tensor& grad_out, Needs) {
    const Tensor logits = contiguous_values(saved.logits.get()), grad_logits = empty_like(logits);
    const CrossEntropyOptions& options = saved.options;
    launch(CrossEntropyBackward{.grad_out = grad_out, .logits = logits, .targets = contiguous_values(saved.targets.get()),
                                .statistics = saved.statistics.get(), .ignore_index = options.ignore_index, .label_smoothing = options.label_smoothing,
                                .reduction = options.reduction, .scale = options.scale, .out = grad_logits});
    return {grad_logits, Tensor()};
  }
};

struct Mse {
  static constexpr std::string_view name = "mse_loss";
  struct Saved {
    SavedTensor x, target;
    Reduction reduction = Reduction::mean;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x, const Tensor& target, Reduction reduction) {
    const bool is_summed = reduction != Reduction::none;
    const Tensor loss = op_output(is_summed ? Shape{} : x.shape(), accumulator_dtype(x.dtype()), x.device());
    Tensor partials;
    if (is_summed) {
      KindScope kind(MemoryKind::workspace);
      partials = empty({MseForward::num_partials(x.numel())}, DType::f64, x.device());
    }
    launch(MseForward{.x = contiguous_values(x), .target = contiguous_values(target), .reduction = reduction, .out = loss, .partials = partials});
    if (!needs.any()) return {loss, {{}, {}, reduction}};
    return {loss, {x, target, reduction}};
  }

  static Grads<2> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    const Tensor x = contiguous_values(saved.x.get()), target = contiguous_values(saved.target.get());
    const auto gradient = [&](const Tensor& of, const Tensor& other) {
      const Tensor grad = empty_like(of);
      launch(MseBackward{.grad_out = grad_out, .x = of, .target = other, .reduction = saved.reduction, .out = grad});
      return grad;
    };
    return {needs[0] ? gradient(x, target) : Tensor(), needs[1] ? gradient(target, x) : Tensor()};
  }
};

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  return apply<CrossEntropy>(logits, targets, options);
}

Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction) { return apply<Mse>(x, target, reduction); }

std::int64_t count_correct(const Tensor& logits, const Tensor& targets, std::int64_t ignore_index) {
  const Tensor count = empty({}, DType::i64, logits.device());
  launch(CountCorrect{.logits = contiguous_values(logits), .targets = contiguous_values(targets), .ignore_index = ignore_index, .out = count});
  return count.has_bytes() ? std::int64_t(count.item()) : 0;
}

std::int64_t count_targets(const Tensor& targets, std::int64_t ignore_index) {
  const Tensor count = empty({}, DType::i64, targets.device());
  launch(CountTargets{.targets = contiguous_values(targets), .ignore_index = ignore_index, .out = count});
  return count.has_bytes() ? std::int64_t(count.item()) : targets.numel();
}

}  // namespace refrain
