#include <refrain/autograd/finite_watch.h>
#include <refrain/autograd/op.h>
#include <refrain/autograd/session.h>
#include <refrain/autograd/tape.h>

namespace refrain {

Tensor op_output(const Shape& shape, DType dtype, const Device& device) {
  detail::ApplyFrame* frame = detail::ApplyFrame::current();
  return frame ? frame->output(shape, dtype, device) : empty(shape, dtype, device);
}

namespace detail {

ApplyFrame* ApplyFrame::current() { return autograd_state().frame; }

ApplyFrame::ApplyFrame(const OpInfo& info, std::span<const Tensor* const> inputs)
    : info_(info), inputs_(inputs.begin(), inputs.end()), outer_(autograd_state().frame), op_scope_(&ThreadContext::op, info.name),
      inside_scope_(&ThreadContext::inside_op, true), skip_scope_(&ThreadContext::skip_kernels, thread_context().skip_kernels) {
  AutogradState& state = autograd_state();
  is_nested_ = outer_ != nullptr;
  state.frame = this;
  try {
    check_devices();
    if (is_nested_) return;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      if (state.is_grad_enabled && inputs_[i]->requires_grad()) needs_.set(i);
      const std::shared_ptr<ValueSlot> slot = inputs_[i]->defined() ? slot_of(*inputs_[i]) : nullptr;
      if (slot == nullptr || slot->mark.session == 0) continue;
      bool is_open = false;
      for (FirstRun* run = state.first_run; run != nullptr; run = run->outer()) is_open |= run->id() == slot->mark.session;
      check(is_open, info.name, ": input ", i, " was made inside a checkpoint region and left it other than by being returned");
    }
    wants_record_ = state.first_run == nullptr && needs_.any();
    if (state.replay == nullptr) return;
    const SkeletonOp& op = state.replay->begin(info, inputs);
    bool wants_results = false, is_kept = true;
    for (std::size_t i = 0; i < op.results.size(); ++i) {
      if (!state.replay->needs_result(int(i))) continue;
      wants_results = true;
      is_kept &= state.replay->kept(int(i)).defined();
    }
    if (!wants_results || is_kept) thread_context().skip_kernels = true;
    else check_inputs_have_bytes();
  } catch (...) {
    state.frame = outer_;
    throw;
  }
}

ApplyFrame::~ApplyFrame() { autograd_state().frame = outer_; }

void ApplyFrame::check_devices() const {
  const Tensor* first = nullptr;
  for (const Tensor* input : inputs_) {
    if (!input->defined()) continue;
    if (first == nullptr) first = input;
    check(input->device().kind() == first->device().kind(), info_.name, ": inputs must be on one kind of device, got ", first->device(), " and ",
          input->device());
  }
}

void ApplyFrame::check_inputs_have_bytes() const {
  for (const Tensor* input : inputs_) {
    if (!input->defined() || input->numel() == 0 || input->storage() != nullptr) continue;
    fail<ReplayMismatch>("replay of ", info_.name, " in module '", thread_context().module->text, "' reads a value of shape ", input->shape(),
                         " that its first run did not read");
  }
}

Tensor ApplyFrame::output(const Shape& shape, DType dtype, const Device& device) {
  const Replay* replay = autograd_state().replay;
  if (is_nested_ || replay == nullptr) {
    Tensor t = empty(shape, dtype, device);
    if (!is_nested_) results_.push_back(t);
    return t;
  }
  const SkeletonOp& op = replay->skeleton().ops[std::size_t(replay->position())];
  const std::size_t call = results_.size();
  check<ReplayMismatch>(call < op.result_of_call.size(), "replay of ", info_.name, " in module '", op.module->text,
                        "' made more results than its first run");
  const int result = op.result_of_call[call];
  Tensor t;
  if (Tensor kept = replay->kept(result); kept.defined()) t = kept.without_autograd();
  else if (replay->needs_result(result)) t = empty(shape, dtype, device);
  else t = without_bytes(shape, dtype, device);
  check<ReplayMismatch>(t.shape() == shape, "replay of ", info_.name, " in module '", op.module->text, "' made a result of shape ", shape,
                        ", its first run ", t.shape());
  results_.push_back(t);
  return t;
}

std::shared_ptr<SavedEntry> ApplyFrame::save(const Tensor& t) {
  if (is_nested_ || !needs_.any()) return nullptr;
  if (!wants_record_) {  // a first run: note what would be saved
    observed_.push_back(t);
    return nullptr;
  }
  entries_.push_back(std::make_shared<SavedEntry>(t));
  return entries_.back();
}

void ApplyFrame::finish(std::span<Tensor> outputs, const std::shared_ptr<Record>& record) {
  if (is_nested_) return;
  AutogradState& state = autograd_state();
  if (state.watch != nullptr) state.watch->look(info_.name, outputs, "output", inputs_, "input");
  // An output that is an input, or known to the tape, gets an identity of its own.
  for (Tensor& output : outputs) {
    bool is_input = false;
    for (const Tensor* input : inputs_) is_input |= is_same(output, *input);
    if (is_input || output.autograd_slot()) output = output.without_autograd();
  }

  if (FirstRun* run = state.first_run) {
    SkeletonOp op;
    op.info = info_;
    op.module = thread_context().module;
    op.needs = needs_;
    op.num_outputs = int(outputs.size());
    op.result_of_call = results_of_calls(outputs, results_);
    std::vector<Tensor> results(outputs.begin(), outputs.end());
    for (std::size_t i = 0; i < results_.size(); ++i) {
      if (op.result_of_call[i] >= int(outputs.size())) results.push_back(results_[i]);
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      const bool wants_grad = i < outputs.size() && needs_.any() && is_floating(results[i].dtype());
      op.results.push_back({results[i].shape(), results[i].dtype(), results[i].device(), wants_grad, 0});
    }
    for (const Tensor* input : inputs_) op.inputs.push_back(input->defined() ? run->ref_of(*input) : ValueRef{});
    const int index = run->next_mark(0).op;
    for (const Tensor& saved : observed_) {
      // The very tensor before others that show the same bytes: inputs may be views of one another.
      ValueRef ref;
      bool is_known = false;
      for (const bool by_bytes : {false, true}) {
        const auto is_it = [&](const Tensor& t) { return t.defined() && (by_bytes ? t.storage() == saved.storage() : is_same(t, saved)); };
        for (std::size_t i = 0; i < inputs_.size() && !is_known; ++i) {
          if (!is_it(*inputs_[i])) continue;
          ref = op.inputs[i];
          is_known = true;
        }
        for (std::size_t i = 0; i < results.size() && !is_known; ++i) {
          if (!is_it(results[i])) continue;
          ref = {ValueRef::Kind::inner, index, int(i)};
          is_known = true;
        }
      }
      invariant(is_known, info_.name, " saves a tensor of shape ", saved.shape(), " that is neither an input nor from op_output()");
      run->add_saved(op, ref);
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      outputs[i].set_autograd_slot(std::make_shared<ValueSlot>(run->next_mark(int(i)), op.results[i].wants_grad));
    }
    run->add_op(std::move(op), std::move(results));
    return;
  }

  if (state.replay != nullptr) {
    std::vector<Tensor> results(outputs.begin(), outputs.end());
    const SkeletonOp& op = state.replay->skeleton().ops[std::size_t(state.replay->position())];
    results.resize(op.results.size());
    for (std::size_t i = 0; i < results_.size(); ++i) results[std::size_t(op.result_of_call[i])] = results_[i];
    for (std::size_t i = 0; i < outputs.size(); ++i) results[i] = outputs[i];
    state.replay->end(outputs, results);
  }
  if (record == nullptr) return;
  record->needs = needs_;
  record->saved = std::move(entries_);
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    record->edges.push_back(needs_[i] && inputs_[i]->requires_grad() ? slot_of(*inputs_[i]) : nullptr);
  }
  if (info_.rebuild == Rebuild::from_input && record->edges[0] != nullptr && record->edges[0]->record != nullptr &&
      record->edges[0]->record->can_rebuild() && record->edges[0]->output == 0) {
    record->rebuild_input = std::make_shared<SavedEntry>(*inputs_[0]);
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    record->outputs.push_back({outputs[i].shape(), outputs[i].dtype(), outputs[i].device(), Tensor(), false});
    if (is_floating(outputs[i].dtype())) outputs[i].set_autograd_slot(std::make_shared<ValueSlot>(record, int(i)));
  }
}

}  // namespace detail

}  // namespace refrain
