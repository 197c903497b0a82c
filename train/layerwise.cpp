#include <refrain/train/layerwise.h>

#include <refrain/autograd/random.h>
#include <refrain/autograd/saved_tensor.h>
#include <refrain/autograd/session.h>
#include <refrain/autograd/stage_keeper.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/check.h>

#include <optional>
#include <unordered_map>
#include <utility>

namespace refrain {

namespace {

// A hidden state between stages, known to no tape.
struct Hidden {
  Tensor value;
  bool wants_grad = false;
};

// The same value as a leaf: a backward ends here, and the next one starts from this leaf's gradient. That gradient is
// a temporary like all gradients of hidden states.
Tensor begin_tape(Hidden hidden) {
  Tensor leaf = detach(hidden.value);
  if (!hidden.wants_grad) return leaf;
  auto slot = std::make_shared<ValueSlot>();
  slot->grad_kind = MemoryKind::temporary;
  leaf.set_autograd_slot(slot);
  return leaf;
}

// Names a value on the tape, and holds none of its bytes.
Tensor name_of_value(const Tensor& t) {
  Tensor name = without_bytes(t.shape(), t.dtype(), t.device());
  name.set_autograd_slot(t.autograd_slot());
  return name;
}

Tensor take_grad(const Tensor& leaf) {
  Tensor grad = grad_of(leaf);
  clear_grad(leaf);
  return grad;
}

// Parts that are no regions come apart into their stages, at every depth: one unit of the schedule each.
std::vector<ChainPart> units_of(std::span<const ChainPart> parts) {
  std::vector<ChainPart> units;
  for (const ChainPart& part : parts) {
    if (part.is_region) {
      units.push_back({part.begin, part.end, true, part.keep, units_of(part.parts)});
    } else if (!part.parts.empty()) {
      for (ChainPart& unit : units_of(part.parts)) units.push_back(std::move(unit));
    } else {
      for (std::size_t i = part.begin; i < part.end; ++i) units.push_back({i, i + 1, false, {}, {}});
    }
  }
  return units;
}

// A part of the chain, and what it keeps of every micro-batch between its forward and its backward.
struct Unit {
  explicit Unit(const ChainPart& its_part) : part(&its_part) {}
  // A group keeps only the hidden states it starts from; all micro-batches pass it again before its backward.
  bool is_group() const { return part->is_region && !part->parts.empty(); }

  const ChainPart* part;
  std::vector<std::shared_ptr<SavedEntry>> kept;  // of a group, and of the head
  std::vector<bool> wants_grad;                   // likewise
  std::vector<std::uint64_t> hashes;              // of a group's results, in certificate mode
  std::vector<Tensor> inputs, outputs;            // of others: where their tapes begin and end

  void keep(Hidden hidden, bool offloads) {
    kept.push_back(std::make_shared<SavedEntry>(hidden.value));
    if (offloads) kept.back()->offload();
    wants_grad.push_back(hidden.wants_grad);
  }
  Hidden take(std::size_t m, bool is_repeated) {
    Hidden hidden{kept[m]->get(), wants_grad[m]};
    if (!is_repeated) kept[m].reset();
    return hidden;
  }
};

}  // namespace

struct LayerwiseWindow::Impl {
  Impl(const ModelLoss& model_loss, std::vector<Batch> window, const WindowPosition& position, double loss_factor, double grad_factor)
      : loss(model_loss),
        batches(std::move(window)),
        step(position.step),
        scale(loss_factor),
        loss_scale(grad_factor),
        run(chain_of(model_loss)) {
    std::int64_t samples = position.first_sample;
    for (const Batch& batch : batches) {
      first_samples.push_back(samples);
      samples += batch.size;
    }
    const auto& stages = loss.model().stages();
    for (std::size_t i = 0; i < stages.size(); ++i) {
      const auto* module = dynamic_cast<const Module*>(stages[i].get());
      bool trains = module == nullptr;  // who knows what it reads
      if (module != nullptr) {
        for (const Tensor& parameter : module->parameters()) {
          trains = trains || parameter.requires_grad();
          first_stage.try_emplace(parameter.autograd_slot().get(), i);
        }
      }
      is_trained.push_back(trains);
    }
  }

  static std::shared_ptr<const ChainRun> chain_of(const ModelLoss& loss) {
    const CheckpointPolicy& policy = loss.options().policy;
    return std::make_shared<const ChainRun>(ChainRun{loss.stages(), units_of(partition(policy, loss.stages())), {}, policy.certify, policy.offload});
  }

  std::size_t size() const { return batches.size(); }

  bool trains(const ChainPart& part) const {
    for (std::size_t i = part.begin; i < part.end; ++i) {
      if (is_trained[i]) return true;
    }
    return false;
  }

  // Runs f as forward of micro-batch m.
  template <class F>
  Tensor forward_of(std::size_t m, F&& f) const {
    const PrecisionScope precision(loss.options().precision);
    const ModuleScope scope = loss.model().enter();
    set_random_position(step, first_samples[m]);
    return f();
  }

  void forward(Unit& unit, std::vector<Hidden>& hidden) const {
    for (std::size_t m = 0; m < size(); ++m) {
      Hidden from = std::exchange(hidden[m], {});
      if (unit.is_group()) {
        unit.keep(from, run->offload);
        const bool wants_grad = from.wants_grad || trains(*unit.part);
        const NoGradScope no_grad;
        hidden[m] = {forward_of(m, [&] { return run_inside(run, *unit.part, std::move(from.value)); }), wants_grad};
        if (run->certify) unit.hashes.push_back(detail::hash_values(hidden[m].value));
        continue;
      }
      Tensor leaf = begin_tape(std::move(from));
      unit.inputs.push_back(name_of_value(leaf));
      const Tensor out = forward_of(m, [&] { return run_part(run, *unit.part, std::move(leaf)); });
      unit.outputs.push_back(name_of_value(out));
      hidden[m] = {detach(out), out.requires_grad()};
    }
  }

  // Before the backward of micro-batch m.
  static void settle(std::size_t m) {
    if (StageKeeper* keeper = stage_keeper(); keeper != nullptr && m == 1) keeper->settle();
  }

  // Everything a walk backward needs to know.
  struct Walk {
    bool is_repeated = false;
    std::vector<Tensor> leaves = {};
    std::function<void(const Tensor&, bool)> on_final = {};
  };

  // One stretch of tape, of micro-batch m. Leaves that no earlier stage reads are final with the last micro-batch.
  void backward(const Walk& walk, const ChainPart& part, std::size_t m, const Tensor& out, Tensor grad, bool is_retained) const {
    BackwardOptions options{.grad_out = std::move(grad), .retain = is_retained, .is_last = m + 1 == size()};
    settle(m);
    if (options.is_last) {
      options.on_final = walk.on_final;
      for (const Tensor& leaf : walk.leaves) {
        const auto found = first_stage.find(leaf.autograd_slot().get());
        const std::size_t first = found != first_stage.end() ? found->second : 0;
        if (part.begin <= first && first < part.end) options.leaves.push_back(leaf);
      }
    }
    refrain::backward(out, std::move(options));
  }

  void backward(const Walk& walk, Unit& unit, std::vector<Tensor>& grads) const {
    if (unit.is_group()) return backward_group(walk, unit, grads);
    for (std::size_t m = 0; m < size(); ++m) {
      if (unit.outputs[m].requires_grad()) {
        backward(walk, *unit.part, m, unit.outputs[m], std::exchange(grads[m], {}), walk.is_repeated);
        grads[m] = take_grad(unit.inputs[m]);
      }
      if (!walk.is_repeated) unit.inputs[m] = unit.outputs[m] = Tensor();
    }
  }

  void backward_group(const Walk& walk, Unit& group, std::vector<Tensor>& grads) const {
    std::vector<Hidden> hidden;
    for (std::size_t m = 0; m < size(); ++m) hidden.push_back(group.take(m, walk.is_repeated));
    std::vector<Unit> inner;
    for (const ChainPart& part : group.part->parts) inner.emplace_back(part);
    Unit last = std::move(inner.back());
    inner.pop_back();
    Walk once = walk;
    once.is_repeated = false;  // what is in the group is made again for every backward
    {
      const PhaseScope replay(Phase::replay);
      for (Unit& unit : inner) forward(unit, hidden);
    }
    if (last.is_group()) {
      for (Hidden& h : hidden) last.keep(std::exchange(h, {}), run->offload);
      last.hashes = group.hashes;
      backward_group(once, last, grads);
    } else {
      for (std::size_t m = 0; m < size(); ++m) backward_last(once, *last.part, m, std::exchange(hidden[m], {}), grads[m], group.hashes);
    }
    while (!inner.empty()) {
      backward(once, inner.back(), grads);
      inner.pop_back();
    }
  }

  // The last part of a group goes backward right after its forward, one micro-batch at a time.
  void backward_last(const Walk& walk, const ChainPart& part, std::size_t m, Hidden from, Tensor& grad,
                     std::span<const std::uint64_t> hashes) const {
    settle(m);
    Tensor leaf = begin_tape(std::move(from)), out;
    const Tensor start = name_of_value(leaf);
    {
      const PhaseScope replay(Phase::replay);
      out = forward_of(m, [&] { return run_inside(run, part, std::move(leaf)); });
    }
    check<ReplayMismatch>(hashes.empty() || detail::hash_values(out) == hashes[m], "the second forward of stages up to '",
                          run->stages[part.end - 1]->name(), "' gave other bits than the first, in micro-batch ", m);
    if (!out.requires_grad()) return;
    out = name_of_value(out);
    backward(walk, part, m, out, std::exchange(grad, {}), false);
    grad = take_grad(start);
  }

  // The last stage and the loss, forward and backward.
  void backward_head(Walk& walk, const BackwardHooks& hooks, std::vector<Tensor>& grads) {
    const ChainPart& part = *head.part;
    for (std::size_t m = 0; m < size(); ++m) {
      Tensor leaf = begin_tape(head.take(m, walk.is_repeated));
      const Tensor start = name_of_value(leaf);
      BatchLoss result;
      {
        std::optional<PhaseScope> replay;
        if (is_replayed) replay.emplace(Phase::replay);
        const Tensor features = forward_of(m, [&] { return run_part(run, part, std::move(leaf)); });
        result = loss.from_features(features, batches[m], batches[m].is_blank ? 0 : scale);
      }
      if (hooks.on_loss && !batches[m].is_blank) hooks.on_loss(result);
      if (m + 1 == size() && hooks.announcements) {
        BackwardOptions announcements = hooks.announcements();
        walk.leaves = std::move(announcements.leaves);
        walk.on_final = std::move(announcements.on_final);
      }
      Tensor grad_out;
      if (loss_scale != 1) grad_out = full(result.loss.shape(), loss_scale, result.loss.dtype(), result.loss.device());
      backward(walk, part, m, result.loss, std::move(grad_out), false);
      grads[m] = take_grad(start);
    }
    is_replayed = true;
  }

  const ModelLoss& loss;
  std::vector<Batch> batches;
  std::uint32_t step;
  double scale, loss_scale;
  std::vector<std::int64_t> first_samples;
  std::shared_ptr<const ChainRun> run;
  std::unordered_map<const AutogradSlot*, std::size_t> first_stage;  // that reads a parameter
  std::vector<bool> is_trained;                                      // stage: has parameters that want gradients
  std::vector<Unit> units;                                           // without the head
  Unit head{run->parts.back()};
  bool is_replayed = false;  // the head ran before
};

LayerwiseWindow::LayerwiseWindow(const ModelLoss& loss, std::vector<Batch> batches, const WindowPosition& position, double scale,
                                 double loss_scale)
    : impl_(std::make_unique<Impl>(loss, std::move(batches), position, scale, loss_scale)) {
  Impl& self = *impl_;
  std::vector<Hidden> hidden;
  for (const Batch& batch : self.batches) hidden.push_back({batch.input, false});
  for (std::size_t i = 0; i + 1 < self.run->parts.size(); ++i) {
    self.units.emplace_back(self.run->parts[i]);
    self.forward(self.units.back(), hidden);
  }
  for (Hidden& h : hidden) self.head.keep(std::exchange(h, {}), self.run->offload);
}

LayerwiseWindow::LayerwiseWindow(LayerwiseWindow&&) noexcept = default;
LayerwiseWindow::~LayerwiseWindow() = default;

void LayerwiseWindow::backward(const BackwardHooks& hooks) {
  Impl& self = *impl_;
  Impl::Walk walk{.is_repeated = hooks.is_repeated};
  std::vector<Tensor> grads(self.size());
  self.backward_head(walk, hooks, grads);
  for (std::size_t i = self.units.size(); i-- > 0;) {
    self.backward(walk, self.units[i], grads);
    if (!hooks.is_repeated) self.units.pop_back();
  }
}

}  // namespace refrain
