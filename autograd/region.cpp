#include <refrain/autograd/region.h>
#include <refrain/autograd/tape.h>

#include <algorithm>

namespace refrain::detail {

namespace {

constexpr OpInfo kRegionInfo{"checkpoint"};

// Puts back the thread's random position and those of the generators a region uses.
class RandomScope {
 public:
  explicit RandomScope(const Skeleton& skeleton) : skeleton_(skeleton), old_state_(random_state()) {
    random_state() = skeleton.random_begin;
    for (const GeneratorUse& use : skeleton.generators) {
      old_positions_.push_back(use.generator.position());
      use.generator.set_position(use.begin);
    }
  }
  ~RandomScope() {
    random_state() = old_state_;
    for (std::size_t i = 0; i < old_positions_.size(); ++i) skeleton_.generators[i].generator.set_position(old_positions_[i]);
  }
  RandomScope(const RandomScope&) = delete;
  RandomScope& operator=(const RandomScope&) = delete;

 private:
  const Skeleton& skeleton_;
  RandomState old_state_;
  std::vector<std::uint64_t> old_positions_;
};

// Gives each distinct output one tensor with a slot from make_slot(index, wants_grad); equal outputs become one tensor.
template <class MakeSlot>
std::vector<Tensor> attach_outputs(const Skeleton& skeleton, std::vector<Tensor>& outputs, MakeSlot&& make_slot) {
  std::vector<Tensor> distinct(skeleton.outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const int index = skeleton.returned[i].output;
    if (index < 0) continue;
    Tensor& tensor = distinct[std::size_t(index)];
    if (!tensor.defined()) {
      tensor = outputs[i].without_autograd();
      if (auto slot = make_slot(index, skeleton.result_of(skeleton.outputs[std::size_t(index)]).wants_grad)) tensor.set_autograd_slot(slot);
    }
    outputs[i] = tensor;
  }
  return distinct;
}

std::vector<Tensor> attach_to_record(const std::shared_ptr<Record>& record, const Skeleton& skeleton, std::vector<Tensor>& outputs) {
  return attach_outputs(skeleton, outputs, [&](int index, bool wants_grad) -> std::shared_ptr<ValueSlot> {
    if (record == nullptr || !wants_grad) return nullptr;
    return std::make_shared<ValueSlot>(record, index);
  });
}

// What a nested region is in the skeleton of the region around it: one op that saves its arguments.
SkeletonOp as_op(FirstRun& outer, const FirstRun& run) {
  const Skeleton& skeleton = *run.skeleton();
  SkeletonOp op;
  op.info = kRegionInfo;
  op.module = thread_context().module;
  op.region = run.skeleton();
  op.num_outputs = int(skeleton.outputs.size());
  for (const ValueRef& ref : skeleton.outputs) op.results.push_back(skeleton.result_of(ref));
  for (std::size_t i = 0; i < skeleton.captures.size(); ++i) {
    op.inputs.push_back(outer.ref_of(run.captured()[i]));
    if (skeleton.captures[i].wants_grad) op.needs.set(i);
    if (skeleton.captures[i].is_argument) outer.add_saved(op, op.inputs.back());
  }
  // A value that only passes through cannot be named without running.
  for (const ReturnedValue& value : skeleton.returned) op.is_read |= value.output < 0 && value.argument < 0;
  return op;
}

// A nested region whose values nobody needs now: it goes on the tape without running, with the skeleton it left when
// the region around it ran first.
RegionResult skip_region(const SkeletonOp& op, const Replay& replay, RegionFunction function,
                                std::span<const Tensor> arguments, bool offloads) {
  auto skeleton = std::make_shared<Skeleton>(*op.region);
  for (std::size_t i = 0; i < skeleton->captures.size(); ++i) {
    if (op.inputs[i].kind == ValueRef::Kind::outer) skeleton->captures[i].slot = replay.skeleton().captures[std::size_t(op.inputs[i].index)].slot;
  }
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const int capture = skeleton->argument_captures[i];
    if (capture >= 0) skeleton->captures[std::size_t(capture)].slot = slot_of(arguments[i]);
  }
  random_state() = skeleton->random_end;
  for (const GeneratorUse& use : skeleton->generators) use.generator.set_position(use.end);

  std::vector<Tensor> outputs;
  for (const ReturnedValue& value : skeleton->returned) {
    if (value.output >= 0) {
      const SkeletonOp::Result& result = skeleton->result_of(skeleton->outputs[std::size_t(value.output)]);
      outputs.push_back(without_bytes(result.shape, result.dtype, result.device));
    } else {
      outputs.push_back(arguments[std::size_t(value.argument)]);
    }
  }
  std::shared_ptr<Record> record;
  if (skeleton->wants_grad()) {
    record = std::make_shared<RegionRecord>(skeleton, std::move(function), arguments, std::vector<Tensor>(),
                                            std::vector<std::vector<Tensor>>(), offloads);
  }
  attach_to_record(record, *skeleton, outputs);
  return {std::move(outputs), skeleton->form};
}

}  // namespace

RegionResult run_region(const CheckpointOptions& options, RegionFunction function, std::span<const Tensor> arguments) {
  AutogradState& state = autograd_state();
  check(state.frame == nullptr, "checkpoint: called inside an op's forward");
  if (!state.is_grad_enabled) return function(arguments);
  FirstRun* outer = state.first_run;
  Replay* replay = state.replay;
  if (replay != nullptr) {
    const SkeletonOp& op = replay->begin(kRegionInfo, {});
    check<ReplayMismatch>(op.region != nullptr && op.region->argument_captures.size() == arguments.size(),
                          "replay of the checkpoint in module '", op.module->text, "' was given other arguments than in its first run");
    if (!replay->computes()) return skip_region(op, *replay, std::move(function), arguments, options.offload);
  }

  FirstRun run(outer, arguments, options.keep, options.certify);
  RegionResult result;
  {
    SessionScope session(&run, nullptr);
    result = function(arguments);
    run.finish(result.tensors);
    run.skeleton()->form = result.form;
  }
  std::vector<Tensor>& outputs = result.tensors;
  const Skeleton& skeleton = *run.skeleton();
  if (outer != nullptr) {
    SkeletonOp op = as_op(*outer, run);
    std::vector<Tensor> results = attach_outputs(skeleton, outputs, [&](int index, bool wants_grad) {
      return std::make_shared<ValueSlot>(outer->next_mark(index), wants_grad);
    });
    outer->add_op(std::move(op), std::move(results));
    return result;
  }
  std::shared_ptr<Record> record;
  if (skeleton.wants_grad()) {
    std::vector<Tensor> held;
    for (std::size_t i = 0; i < skeleton.captures.size(); ++i) {
      if (!skeleton.captures[i].is_argument) held.push_back(run.captured()[i]);
    }
    record = std::make_shared<RegionRecord>(run.skeleton(), std::move(function), arguments, held, std::move(run.kept()), options.offload);
  }
  const std::vector<Tensor> distinct = attach_to_record(record, skeleton, outputs);
  if (replay != nullptr) replay->end(distinct, distinct);
  return result;
}

RegionRecord::RegionRecord(std::shared_ptr<const Skeleton> skeleton, RegionFunction function,
                           std::span<const Tensor> arguments, const std::vector<Tensor>& held, std::vector<std::vector<Tensor>> kept,
                           bool offloads)
    : Record(kRegionInfo), skeleton_(std::move(skeleton)), function_(std::move(function)), kept_(std::move(kept)) {
  for (const Tensor& argument : arguments) arguments_.push_back(argument.defined() ? std::make_shared<SavedEntry>(argument) : nullptr);
  for (const auto& argument : arguments_) {
    if (offloads && argument != nullptr) argument->offload();
  }
  for (const Tensor& t : held) held_.push_back(std::make_shared<SavedEntry>(t));
  for (const std::vector<Tensor>& results : kept_) {
    for (const Tensor& result : results) {
      if (result.defined()) held_.push_back(std::make_shared<SavedEntry>(result));
    }
  }
  for (const Capture& capture : skeleton_->captures) edges.push_back(capture.wants_grad ? capture.slot : nullptr);
  for (const ValueRef& ref : skeleton_->outputs) {
    const SkeletonOp::Result& result = skeleton_->result_of(ref);
    outputs.push_back({result.shape, result.dtype, result.device, Tensor(), false});
  }
}

std::vector<Tensor> RegionRecord::backward(std::span<const Tensor>) { fail<InternalError>("internal error: a region is replayed, not run backward"); }

Tensor RegionRecord::rebuild() const { fail<InternalError>("internal error: a region cannot be rebuilt"); }

void RegionRecord::release() {
  for (const auto& argument : arguments_) {
    if (argument != nullptr) argument->release();
  }
  for (const auto& entry : held_) entry->release();
  kept_.clear();
  function_ = nullptr;
  skeleton_.reset();
  Record::release();
}

std::vector<bool> RegionRecord::reached_outputs() const {
  std::vector<bool> reached;
  for (const Output& output : outputs) reached.push_back(output.is_reached);
  return reached;
}

void RegionRecord::for_each_contribution(const std::function<void(const std::shared_ptr<ValueSlot>&)>& deliver) const {
  skeleton_->for_each_contribution(reached_outputs(), [&](int capture) { deliver(skeleton_->captures[std::size_t(capture)].slot); });
}

std::vector<Tensor> RegionRecord::replay() {
  Replay replay(*skeleton_, reached_outputs(), kept_);
  ModuleScope module_scope(skeleton_->module);
  PhaseScope phase_scope(Phase::replay);
  RandomScope random_scope(*skeleton_);
  SessionScope session(nullptr, &replay);
  GradModeScope grad_mode(true);
  AutocastScope autocast(skeleton_->autocast);
  std::vector<Tensor> arguments;
  for (const auto& argument : arguments_) arguments.push_back(argument != nullptr ? argument->get_with_slot() : Tensor());
  for (const auto& entry : held_) entry->check_unchanged();
  const std::vector<Tensor> returned = function_(arguments).tensors;
  replay.finish();
  check<ReplayMismatch>(returned.size() == skeleton_->returned.size(), "replay of the region in module '", skeleton_->module->text,
                        "' returned ", returned.size(), " tensors, its first run ", skeleton_->returned.size());
  std::vector<Tensor> distinct(outputs.size());
  for (std::size_t i = 0; i < returned.size(); ++i) {
    if (const int index = skeleton_->returned[i].output; index >= 0) distinct[std::size_t(index)] = returned[i];
  }
  return distinct;
}

}  // namespace refrain::detail
