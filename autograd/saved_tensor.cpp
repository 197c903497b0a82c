#include <refrain/autograd/op.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/saved_tensor.h>
#include <refrain/autograd/session.h>
#include <refrain/autograd/stage_keeper.h>

namespace refrain {

SavedEntry::SavedEntry(const Tensor& t) : slot_(t.autograd_slot()) {
  const std::shared_ptr<ValueSlot> slot = slot_of(t);
  if (slot != nullptr && slot->record != nullptr && slot->output == 0 && slot->record->can_rebuild()) {
    recipe_ = slot->record;
    return;
  }
  tensor_ = t.without_autograd();
  if (tensor_.storage() == nullptr) return;
  version_ = tensor_.storage()->version();
  tensor_.storage()->add_saved();
}

Tensor SavedEntry::get() const {
  check(!released_, "a saved value was read after an earlier backward released it; pass retain to call backward twice");
  if (recipe_ != nullptr) {
    if (StageKeeper* keeper = detail::autograd_state().keeper; keeper != nullptr && recipe_->stage != kNoStage)
      keeper->require(recipe_->stage);
    ContextScope<std::string_view> op(&ThreadContext::op, recipe_->info.name);
    ContextScope<bool> inside(&ThreadContext::inside_op, true);
    return recipe_->rebuild();
  }
  check_unchanged();
  return away_from_ ? to_device(tensor_, *away_from_) : tensor_;
}

void SavedEntry::offload() {
  if (released_ || !tensor_.defined() || tensor_.storage() == nullptr || away_from_) return;
  const KindScope kind(MemoryKind::saved);
  const Device device = tensor_.device();
  const Tensor copy = to_device(tensor_, device.host());
  tensor_.storage()->remove_saved();
  tensor_ = copy;
  tensor_.storage()->add_saved();
  version_ = tensor_.storage()->version();
  away_from_ = device;
}

void SavedEntry::check_unchanged() const {
  if (tensor_.defined() && tensor_.storage() != nullptr) {
    check(tensor_.storage()->version() == version_, "a tensor of shape ", tensor_.shape(), " that backward reads was changed in place after ",
          "it was saved (version ", version_, ", now ", tensor_.storage()->version(), "; allocated by ",
          tensor_.storage()->tag().op.empty() ? "the caller" : tensor_.storage()->tag().op, " in module '",
          tensor_.storage()->tag().module->text, "')");
  }
}

Tensor SavedEntry::get_with_slot() const {
  Tensor t = get().without_autograd();
  t.set_autograd_slot(slot_);
  return t;
}

void SavedEntry::release() {
  if (released_) return;
  released_ = true;
  if (tensor_.defined() && tensor_.storage() != nullptr) tensor_.storage()->remove_saved();
  tensor_ = Tensor();
  recipe_.reset();
  slot_.reset();
}

SavedTensor::SavedTensor(const Tensor& t) {
  if (!t.defined()) return;
  detail::ApplyFrame* frame = detail::ApplyFrame::current();
  invariant(frame != nullptr, "SavedTensor made outside an op's forward");
  entry_ = frame->save(t);
}

}  // namespace refrain
