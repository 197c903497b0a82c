#include <refrain/autograd/accumulate.h>
#include <refrain/autograd/session.h>
#include <refrain/autograd/tape.h>

namespace refrain {

namespace {

// One count for all threads: a tape may be made by one thread and walked by another.
std::atomic<std::uint64_t> last_sequence{0};

}  // namespace

void ValueSlot::on_read() {
  if (mark.session == 0 || thread_context().inside_op) return;
  for (detail::FirstRun* run = detail::autograd_state().first_run; run != nullptr; run = run->outer()) {
    if (run->id() == mark.session) run->note_read(mark);
  }
}

Record::Record(const OpInfo& op_info) : info(op_info), sequence(++last_sequence), live_(detail::autograd_state().live_records) { ++*live_; }

Record::~Record() {
  --*live_;
  // A long chain of records must not be destroyed by recursion: edges are let go one after the other.
  thread_local std::vector<std::shared_ptr<ValueSlot>>* draining = nullptr;
  if (draining != nullptr) {
    for (auto& edge : edges) {
      if (edge != nullptr) draining->push_back(std::move(edge));
    }
    return;
  }
  std::vector<std::shared_ptr<ValueSlot>> pending = std::move(edges);
  draining = &pending;
  while (!pending.empty()) {
    std::shared_ptr<ValueSlot> slot = std::move(pending.back());
    pending.pop_back();
    slot.reset();
  }
  draining = nullptr;
}

bool Record::can_rebuild() const {
  if (is_released || info.rebuild == Rebuild::never) return false;
  if (info.rebuild == Rebuild::from_input) return rebuild_input != nullptr;
  for (const std::shared_ptr<SavedEntry>& entry : saved) {
    if (!entry->has_value()) return false;
  }
  return true;
}

void Record::release() {
  for (const std::shared_ptr<SavedEntry>& entry : saved) entry->release();
  saved.clear();
  if (rebuild_input != nullptr) rebuild_input->release();
  edges.clear();
  is_released = true;
}

void set_requires_grad(const Tensor& t, bool requires_grad) {
  check(t.defined(), "set_requires_grad: undefined tensor");
  check(is_floating(t.dtype()) || !requires_grad, "set_requires_grad: a ", t.dtype(), " tensor has no gradient");
  check(is_leaf(t), "set_requires_grad: the tensor is the result of an op; detach() it first");
  if (const std::shared_ptr<ValueSlot> slot = slot_of(t)) {
    slot->set_requires_grad(requires_grad);
    if (!requires_grad) drop_grad(*slot);
  } else if (requires_grad) {
    t.set_autograd_slot(std::make_shared<ValueSlot>());
  }
}

bool is_leaf(const Tensor& t) {
  const std::shared_ptr<ValueSlot> slot = slot_of(t);
  return slot == nullptr || slot->is_leaf();
}

Tensor grad_of(const Tensor& leaf) {
  const std::shared_ptr<ValueSlot> slot = slot_of(leaf);
  return slot != nullptr ? whole_grad(*slot) : Tensor();
}

void set_grad(const Tensor& leaf, const Tensor& grad) {
  const std::shared_ptr<ValueSlot> slot = slot_of(leaf);
  check(slot != nullptr && slot->is_leaf(), "set_grad: the tensor is no leaf that wants a gradient");
  check(grad.shape() == leaf.shape() && grad.dtype() == leaf.dtype(), "set_grad: gradient must be ", leaf.dtype(), " ", leaf.shape(), ", got ",
        grad.dtype(), " ", grad.shape());
  drop_grad(*slot);
  slot->grad = grad;
}

void clear_grad(const Tensor& leaf) {
  if (const std::shared_ptr<ValueSlot> slot = slot_of(leaf)) drop_grad(*slot);
}

Tensor detach(const Tensor& t) {
  if (t.autograd_slot()) t.autograd_slot()->on_read();  // its readers are unknown to a checkpoint region
  return t.without_autograd();
}

bool is_grad_enabled() { return detail::autograd_state().is_grad_enabled; }

NoGradScope::NoGradScope() : old_(detail::autograd_state().is_grad_enabled) { detail::autograd_state().is_grad_enabled = false; }
NoGradScope::~NoGradScope() { detail::autograd_state().is_grad_enabled = old_; }

std::int64_t tape_size() { return detail::autograd_state().live_records->load(); }

}  // namespace refrain
