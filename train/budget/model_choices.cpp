#include <refrain/train/budget/model_choices.h>

#include <refrain/autograd/precision.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/kernels/kernel.h>
#include <refrain/train/device_choice.h>
#include <refrain/train/setup.h>

#include <array>
#include <cmath>
#include <map>
#include <set>

namespace refrain {

namespace {

using Stages = std::vector<std::shared_ptr<Stage>>;
using KeepList = std::vector<std::string>;

// Results worth keeping in a region per block: none; attention's; its and the residual stream's after it, so that the product
// in between is not replayed; those of all products, alone and with attention's.
const std::vector<KeepList>& keep_lists() {
  static const std::vector<KeepList> lists{{}, {"attention"}, {"attention", "add"}, {"matmul"}, {"matmul", "attention"}};
  return lists;
}

struct Numbers {
  std::int64_t kept = 0, forward_peak = 0, backward_peak = 0, replayed = 0;
};

std::vector<Tensor> trained_parameters(const Stage& stage) {
  std::vector<Tensor> trained;
  const auto* module = dynamic_cast<const Module*>(&stage);
  if (module == nullptr) return trained;
  for (const Tensor& t : module->parameters()) {
    if (t.requires_grad()) trained.push_back(t);
  }
  return trained;
}

class Probe {
 public:
  Probe(const Config& config, const PlannedSamples::Sizes& samples)
      : device_(plan_device(config)), config_(config), model_(build_model(config, device_)), loss_(build_loss(config, model_)),
        stages_(loss_->stages()), precision_(parse_precision(config.precision)) {
    seed_random(0);
    batch_.input = zeros(with_batch(samples.input_shape), samples.input_dtype, device_);
    batch_.target = zeros(with_batch(samples.target_shape), DType::i64, device_);
    batch_.size = config.batch;
    const NoGradScope no_grad;
    Tensor hidden = batch_.input;
    bool is_trained = false;
    for (const auto& stage : stages_) {
      inputs_.push_back(hidden.shape());
      dtypes_.push_back(hidden.dtype());
      wants_grad_.push_back(is_trained);
      is_trained = is_trained || !trained_parameters(*stage).empty();
      hidden = run_chain({stage}, hidden, {}, {});
    }
  }

  const Stages& stages() const { return stages_; }

  // What tells stages apart that need numbers of their own.
  std::string signature(std::size_t stage) const {
    std::string text = concat(inputs_[stage], ' ', int(dtypes_[stage]), wants_grad_[stage] ? " wants gradient" : "");
    for (const Tensor& t : trained_parameters(*stages_[stage])) text += concat(' ', t.shape(), int(t.dtype()));
    return text;
  }

  // `parts` are counted from `begin`. Gradients of the parameters exist before when `has_gradients` says so.
  Numbers measure(std::size_t begin, std::size_t end, const std::vector<ChainPart>& parts, bool has_gradients) {
    if (has_gradients) run(begin, end, parts);
    const Numbers numbers = run(begin, end, parts);
    for (std::size_t i = begin; i < end; ++i) {
      for (const Tensor& t : trained_parameters(*stages_[i])) clear_grad(t);
    }
    return numbers;
  }

 private:
  Shape with_batch(const Shape& sample) const {
    Shape shape{config_.batch};
    for (int i = 0; i < sample.size(); ++i) shape.push_back(sample[i]);
    return shape;
  }

  Numbers run(std::size_t begin, std::size_t end, const std::vector<ChainPart>& parts) {
    const ModuleScope scope = model_->enter();
    const bool is_first = begin == 0, is_last = end == stages_.size();
    Tensor hidden = is_first ? batch_.input : zeros(inputs_[begin], dtypes_[begin], device_);
    if (wants_grad_[begin]) set_requires_grad(hidden);
    Numbers numbers;
    const std::int64_t before = device_.live_bytes();
    device_.reset_peak();
    Tensor out = run_chain(Stages(stages_.begin() + std::ptrdiff_t(begin), stages_.begin() + std::ptrdiff_t(end)), std::move(hidden), {},
                           {.kind = CheckpointKind::custom, .certify = config_.certify, .parts = parts});
    hidden = Tensor();
    if (is_last) out = loss_->from_features(out, batch_, 1).loss;
    numbers.forward_peak = device_.peak_bytes() - before;
    if (!out.requires_grad()) return numbers;  // nothing before or in here is trained: nothing is kept
    numbers.kept = device_.live_bytes() - before;
    const double replayed = cost_meter().replay.flops;
    // In a training the result is no longer there when its gradient is.
    const std::int64_t result = is_last ? 0 : out.bytes();
    Tensor grad_out = is_last ? Tensor() : zeros(out.shape(), out.dtype(), device_);
    device_.reset_peak();
    backward(out, {.grad_out = std::move(grad_out)});
    numbers.backward_peak = device_.peak_bytes() - before - result;
    numbers.replayed = std::llround(cost_meter().replay.flops - replayed);
    return numbers;
  }

  Device device_;
  Config config_;
  std::shared_ptr<ChainModel> model_;
  std::shared_ptr<const ModelLoss> loss_;
  Stages stages_;
  PrecisionScope precision_;
  Batch batch_;
  std::vector<Shape> inputs_;
  std::vector<DType> dtypes_;
  std::vector<bool> wants_grad_;  // the input of each stage, when something before it is trained
};

// Sizes of groups that are tried among n like blocks: all small ones, then fewer.
std::set<std::int64_t> group_sizes(std::int64_t n) {
  std::set<std::int64_t> sizes;
  for (std::int64_t size = 2; size <= n; size += size < 8 ? 1 : size / 4) sizes.insert(size);
  for (const std::int64_t parts : {1, 2, 3, 4}) sizes.insert((n + parts - 1) / parts);
  sizes.insert(std::int64_t(std::ceil(std::sqrt(double(n)))));
  sizes.erase(0);
  sizes.erase(1);
  return sizes;
}

Numbers extrapolated(const Numbers& three, const Numbers& four, std::int64_t size) {
  const auto line = [size](std::int64_t a, std::int64_t b) { return b + (b - a) * (size - 4); };
  return {four.kept, line(three.forward_peak, four.forward_peak), line(three.backward_peak, four.backward_peak), line(three.replayed, four.replayed)};
}

}  // namespace

ModelChoices measure_model(const Config& config, const PlannedSamples::Sizes& samples, bool groups) {
  Probe probe(config, samples);
  const Stages& stages = probe.stages();
  const bool is_layerwise = config.accumulate_schedule == "layerwise";
  const bool is_fused = config.update == "fused" || is_layerwise;
  const bool has_gradients = config.accumulate > 1 && !is_layerwise;
  const std::int64_t passes = config.accumulate;              // of a window
  const std::int64_t held = is_layerwise ? passes : 1;        // micro-batches whose values are kept at a time

  ModelChoices made;
  made.num_stages = stages.size();
  // Gradients that exist beside those of stage i when its backward runs: of all later ones, where they wait for the update.
  std::vector<std::int64_t> later(stages.size() + 1, 0);
  for (std::size_t i = stages.size(); i-- > 0;) {
    later[i] = later[i + 1];
    if (is_fused || has_gradients) continue;
    for (const Tensor& t : trained_parameters(*stages[i])) later[i] += t.bytes();
  }
  std::vector<std::size_t> blocks;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (stages[i]->is_block()) blocks.push_back(i);
  }
  made.num_blocks = blocks.size();

  std::array<std::vector<std::int64_t>, 2> kept;  // by a stage as it is, and as a region
  for (auto& list : kept) list.resize(stages.size());
  // `inside`: bytes that a replay of the choice keeps at a time, for each micro-batch that is held.
  const auto add = [&](std::size_t begin, std::size_t end, const Numbers& n, std::int64_t inside, const BlockPart& part) {
    const std::int64_t more = (held - 1) * std::max(n.kept, inside);
    if (end == begin + 1 && part.group == 0 && part.keep.empty()) kept[part.per_block][begin] = held * n.kept;
    made.choices.push_back({begin, end, held * n.kept, std::max(n.forward_peak, n.backward_peak + later[end]) + more, passes * n.replayed});
    made.parts.push_back(part);
  };
  const auto block_part = [](std::size_t block, std::int64_t count, bool per_block, bool is_group, const KeepList& keep) {
    return BlockPart{std::int64_t(block), std::int64_t(block) + count - 1, per_block, is_group ? count : 0, keep};
  };

  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (!stages[i]->is_block()) add(i, i + 1, probe.measure(i, i + 1, {{0, 1}}, has_gradients), 0, {.first = -1, .last = -1});
  }
  // Runs of like blocks, one after the other in the chain.
  std::map<std::string, std::vector<Numbers>> single;   // none, then the keep-lists
  for (std::size_t first = 0, end = 0; first < blocks.size(); first = end) {
    const std::string signature = probe.signature(blocks[first]);
    while (end < blocks.size() && blocks[end] == blocks[first] + (end - first) && probe.signature(blocks[end]) == signature) ++end;
    const std::int64_t count = std::int64_t(end - first);
    const std::size_t last = blocks[end - 1];
    std::vector<Numbers>& numbers = single[signature];
    if (numbers.empty()) {
      numbers.push_back(probe.measure(last, last + 1, {{0, 1}}, has_gradients));
      for (const KeepList& keep : keep_lists()) numbers.push_back(probe.measure(last, last + 1, {{0, 1, true, keep}}, has_gradients));
    }
    for (std::size_t b = first; b < end; ++b) {
      add(blocks[b], blocks[b] + 1, numbers[0], 0, block_part(b, 1, false, false, {}));
      for (std::size_t k = 0; k < keep_lists().size(); ++k)
        add(blocks[b], blocks[b] + 1, numbers[1 + k], 0, block_part(b, 1, true, false, keep_lists()[k]));
    }
    // Inside a group: bare blocks, a region per block, and one that keeps attention.
    for (std::size_t inner = 0; inner < 3 && count >= 2 && groups; ++inner) {
      const KeepList keep = inner == 2 ? KeepList{"attention"} : KeepList{};
      const auto measured = [&](std::int64_t size) {
        ChainPart group{0, std::size_t(size), true, {}, {}};
        for (std::size_t i = 0; inner > 0 && i < group.end; ++i) group.parts.push_back({i, i + 1, true, keep, {}});
        return probe.measure(last + 1 - group.end, last + 1, {group}, has_gradients);
      };
      std::map<std::int64_t, Numbers> few;
      for (std::int64_t size = 2; size <= std::min<std::int64_t>(count, 4); ++size) few[size] = measured(size);
      for (const std::int64_t size : group_sizes(count)) {
        const Numbers n = size <= 4 ? few.at(size) : extrapolated(few.at(3), few.at(4), size);
        const std::int64_t inside = size * numbers[inner].kept;
        for (std::size_t b = first; b + std::size_t(size) <= end; ++b)
          add(blocks[b], blocks[b] + std::size_t(size), n, inside, block_part(b, size, inner > 0, true, keep));
      }
    }
  }
  for (const int levels : {2, 3}) {
    std::int64_t& sum = made.kept_nested[levels];
    // A group keeps its result, as a region of its last block does.
    for (const ChainPart& part : partition({.kind = CheckpointKind::nested, .levels = levels}, stages)) {
      if (part.end < stages.size()) sum += kept[part.is_region][part.end - 1];
    }
  }
  return made;
}

}  // namespace refrain
