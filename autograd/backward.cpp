// backward(): two walks over the tape in reverse time order. The first changes nothing: it finds what the output
// depends on, skeletons included, and counts the contributions each leaf will get. The second makes them.
#include <refrain/autograd/accumulate.h>
#include <refrain/autograd/finite_watch.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/region.h>
#include <refrain/autograd/stage_keeper.h>
#include <refrain/autograd/tape.h>

#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace refrain {

namespace {

using detail::RegionRecord;

// Records still to be visited, latest first.
class Agenda {
 public:
  void add(const std::shared_ptr<Record>& record) {
    if (queued_.insert(record.get()).second) queue_.push(record);
  }
  bool empty() const { return queue_.empty(); }
  std::shared_ptr<Record> take() {
    std::shared_ptr<Record> record = queue_.top();
    queue_.pop();
    queued_.erase(record.get());  // its address may come back as another record's
    return record;
  }

 private:
  struct Earlier {
    bool operator()(const std::shared_ptr<Record>& a, const std::shared_ptr<Record>& b) const { return a->sequence < b->sequence; }
  };
  std::priority_queue<std::shared_ptr<Record>, std::vector<std::shared_ptr<Record>>, Earlier> queue_;
  std::unordered_set<const Record*> queued_;
};

class Backward {
 public:
  Backward(const Tensor& output, const BackwardOptions& options) : options_(options), root_(slot_of(output)) {
    for (const Tensor& leaf : options.leaves) {
      if (const std::shared_ptr<ValueSlot> slot = slot_of(leaf)) leaf_of_.emplace(slot.get(), leaf);
    }
    for (const Tensor& leaf : options.unfinished) unfinished_.insert(slot_of(leaf).get());
  }

  // Leaves counters and marks behind; throws before that when the tape was released.
  void find_reached() {
    std::vector<std::shared_ptr<Record>> visited;
    Agenda agenda;
    const auto reach = [&](const std::shared_ptr<ValueSlot>& slot) {
      if (slot->is_leaf()) {
        if (slot->num_pending++ == 0) reached_leaves_.push_back(slot);
        return;
      }
      slot->record->outputs[std::size_t(slot->output)].is_reached = true;
      agenda.add(slot->record);
    };
    reach(root_);
    while (!agenda.empty()) {
      const std::shared_ptr<Record> record = agenda.take();
      visited.push_back(record);
      if (record->is_released) {
        undo(visited);
        fail("backward: ", record->info.name, " in module '", record->module->text,
             "' was released by an earlier backward; pass retain = true to the first one to go through it twice");
      }
      each_contribution(*record, reach);
    }
    for (const auto& record : visited) {
      for (Record::Output& out : record->outputs) out.is_reached = false;
    }
  }

  void run(Tensor grad_out) {
    announce_unreached();
    deliver(root_, std::move(grad_out));
    while (!agenda_.empty()) {
      running_ = agenda_.take();
      step(running_);
    }
    running_.reset();
  }

  // After an exception: no counter and no half-summed gradient stays behind.
  void abandon() noexcept {
    for (const auto& slot : reached_leaves_) slot->num_pending = 0;
    if (running_ != nullptr) clear(*running_);
    while (!agenda_.empty()) clear(*agenda_.take());
  }

 private:
  static void clear(Record& record) {
    for (Record::Output& out : record.outputs) {
      out.grad = Tensor();
      out.is_reached = false;
    }
  }

  void undo(const std::vector<std::shared_ptr<Record>>& visited) {
    for (const auto& record : visited) clear(*record);
    for (const auto& slot : reached_leaves_) slot->num_pending = 0;
  }

  template <class F>
  static void each_contribution(const Record& record, F&& f) {
    if (record.is_region()) {
      static_cast<const RegionRecord&>(record).for_each_contribution(f);
    } else {
      for (const std::shared_ptr<ValueSlot>& edge : record.edges) {
        if (edge != nullptr) f(edge);
      }
    }
  }

  void deliver(const std::shared_ptr<ValueSlot>& slot, Tensor grad) {
    if (slot->is_leaf()) {
      if (grad.defined()) {
        const Tensor part = watch_ != nullptr ? grad : Tensor();
        const Tensor& sum = accumulate_leaf(*slot, running_ != nullptr ? running_->stage : kNoStage, std::move(grad));
        look_at_sum(sum, part);
      }
      if (--slot->num_pending == 0) announce(*slot);
      return;
    }
    Record::Output& out = slot->record->outputs[std::size_t(slot->output)];
    out.is_reached = true;
    if (grad.defined()) {
      const Tensor part = watch_ != nullptr ? grad : Tensor();
      accumulate(out.grad, std::move(grad));
      look_at_sum(out.grad, part);
    }
    agenda_.add(slot->record);
  }

  void step(const std::shared_ptr<Record>& record) {
    bool has_grad = false;
    std::vector<Tensor> grads;
    for (Record::Output& out : record->outputs) has_grad |= out.grad.defined();
    if (!has_grad) {
      each_contribution(*record, [&](const std::shared_ptr<ValueSlot>& slot) { deliver(slot, Tensor()); });
    } else if (record->is_region()) {
      replay(static_cast<RegionRecord&>(*record));
    } else {
      if (keeper_ != nullptr && record->stage != kNoStage) keeper_->enter(record->stage);
      ModuleScope module_scope(record->module);
      ContextScope<std::string_view> op_scope(&ThreadContext::op, record->info.name);
      for (Record::Output& out : record->outputs) {
        Tensor grad = std::move(out.grad);
        out.grad = Tensor();
        grads.push_back(grad.defined() ? contiguous_values(grad) : Tensor());
      }
      std::vector<Tensor> input_grads = record->backward(grads);
      if (watch_ != nullptr) look(*record, grads, input_grads);
      grads.clear();
      invariant(input_grads.size() == record->edges.size(), record->info.name, " has ", record->edges.size(), " inputs and gave ",
                input_grads.size(), " gradients");
      // What was saved goes before anything else is allocated.
      std::vector<std::shared_ptr<ValueSlot>> edges = record->edges;
      if (!options_.retain) record->release();
      for (std::size_t i = 0; i < edges.size(); ++i) {
        if (edges[i] != nullptr) check_dtype(*record, i, *edges[i], input_grads[i]);
        if (edges[i] != nullptr) deliver(edges[i], std::move(input_grads[i]));
        input_grads[i] = Tensor();
      }
    }
    clear(*record);
    if (!options_.retain && !record->is_released) record->release();
  }

  // The parts before `part` were looked at when they came; a sum that was not finite before is not born here.
  void look_at_sum(const Tensor& sum, const Tensor& part) {
    if (watch_ == nullptr) return;
    const Tensor* parts[] = {&part};
    watch_->look("sum of gradients", {&sum, 1}, "gradient", parts, "last part");
  }

  void look(const Record& record, std::vector<Tensor> read, const std::vector<Tensor>& input_grads) const {
    for (const auto& entry : record.saved) read.push_back(entry->get());
    std::vector<const Tensor*> inputs;
    for (const Tensor& t : read) inputs.push_back(&t);
    watch_->look(record.info.name, input_grads, "gradient of input", inputs, "gradient or saved value");
  }

  // A gradient of another dtype would take the wrong number of bytes, or lose the bits it was kept in f32 for.
  static void check_dtype(const Record& record, std::size_t input, const ValueSlot& slot, const Tensor& grad) {
    if (slot.is_leaf() || !grad.defined()) return;
    const DType expected = slot.record->outputs[std::size_t(slot.output)].dtype;
    invariant(grad.dtype() == expected, record.info.name, ": the gradient of input ", input, " must be ", expected, ", got ", grad.dtype());
  }

  // The replayed ops take the region's place on the tape: they are later than everything that is still to come.
  void replay(RegionRecord& record) {
    const std::vector<Tensor> outputs = record.replay();
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      Record::Output& out = record.outputs[i];
      if (!out.is_reached) continue;
      const std::shared_ptr<ValueSlot> slot = slot_of(outputs[i]);
      invariant(slot != nullptr && slot->record != nullptr, "a replayed output has no record");
      deliver(slot, std::move(out.grad));
      out.grad = Tensor();
    }
  }

  void announce(ValueSlot& slot) {
    if (!options_.is_last || unfinished_.contains(&slot)) return;
    merge_stages(slot);
    if (!options_.on_final) return;
    const auto leaf = leaf_of_.find(&slot);
    if (leaf != leaf_of_.end()) options_.on_final(leaf->second, slot.grad.defined());
  }

  void announce_unreached() {
    for (const Tensor& leaf : options_.leaves) {
      const std::shared_ptr<ValueSlot> slot = slot_of(leaf);
      if (slot != nullptr && slot->requires_grad() && slot->num_pending == 0) announce(*slot);
    }
  }

  const BackwardOptions& options_;
  FiniteWatch* watch_ = detail::autograd_state().watch;
  StageKeeper* keeper_ = detail::autograd_state().keeper;
  std::shared_ptr<ValueSlot> root_;
  std::unordered_map<const ValueSlot*, Tensor> leaf_of_;
  std::unordered_set<const ValueSlot*> unfinished_;
  std::vector<std::shared_ptr<ValueSlot>> reached_leaves_;
  Agenda agenda_;
  std::shared_ptr<Record> running_;
};

// What the walk starts with.
Tensor initial_grad(const Tensor& output, Tensor grad_out) {
  if (!grad_out.defined()) {
    check(output.numel() == 1, "backward: output of shape ", output.shape(), " is no scalar; pass grad_out");
    return full(output.shape(), 1, output.dtype(), output.device());
  }
  check(grad_out.shape() == output.shape() && grad_out.dtype() == output.dtype(), "backward: grad_out must be ", output.dtype(), " ",
        output.shape(), ", got ", grad_out.dtype(), " ", grad_out.shape());
  return grad_out.without_autograd();
}

}  // namespace

void backward(const Tensor& output, const BackwardOptions& options) { backward(output, BackwardOptions(options)); }

void backward(const Tensor& output, BackwardOptions&& options) {
  detail::AutogradState& state = detail::autograd_state();
  check(output.defined(), "backward: undefined output");
  check(state.first_run == nullptr && state.replay == nullptr && !state.is_in_backward && state.frame == nullptr,
        "backward: called inside a checkpoint region or another backward");
  check(output.requires_grad(), "backward: the output depends on no tensor that wants a gradient");
  Backward walk(output, options);
  ModuleScope module_scope(ModulePath::root());
  PhaseScope phase_scope(Phase::backward);
  ContextScope<std::string_view> op_scope(&ThreadContext::op, "backward");
  detail::GradModeScope grad_mode(false);
  detail::AutocastScope no_autocast({});  // gradients have the dtypes of the values they belong to
  Tensor grad_out = initial_grad(output, std::exchange(options.grad_out, Tensor()));
  walk.find_reached();
  state.is_in_backward = true;
  try {
    walk.run(std::move(grad_out));
  } catch (...) {
    state.is_in_backward = false;
    walk.abandon();
    throw;
  }
  state.is_in_backward = false;
}

}  // namespace refrain
