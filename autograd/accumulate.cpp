#include <refrain/autograd/accumulate.h>
#include <refrain/kernels/elementwise/elementwise.h>

#include <algorithm>

namespace refrain {

namespace {

void add_to(Tensor& total, const Tensor& grad, MemoryKind kind) {
  const bool in_place = total.is_sole_owner() && total.is_contiguous();
  KindScope scope(kind);
  const Tensor out = in_place ? total : empty_like(total);
  launch(Binary{.op = BinaryOp::add, .a = total, .b = grad, .out = out});
  if (in_place) total.storage()->bump_version();
  else total = out;
}

}  // namespace

void accumulate(Tensor& total, Tensor grad) {
  if (total.defined()) add_to(total, grad, MemoryKind::temporary);
  else total = std::move(grad);
}

const Tensor& accumulate_leaf(ValueSlot& slot, std::uint32_t stage, Tensor grad) {
  if (!slot.grad.defined()) slot.grad_stage = stage;
  Tensor* total = &slot.grad;
  if (stage != slot.grad_stage) {
    const auto found = std::find_if(slot.later_stages.begin(), slot.later_stages.end(), [&](const auto& s) { return s.stage == stage; });
    total = found != slot.later_stages.end() ? &found->grad : &slot.later_stages.emplace_back(ValueSlot::StageGrad{stage, Tensor()}).grad;
  }
  if (total->defined()) {
    add_to(*total, grad, slot.grad_kind);
    return *total;
  }
  const bool owns = grad.is_sole_owner() && grad.is_contiguous() && grad.storage()->bytes() == grad.bytes() && grad.storage()->num_saved() == 0;
  if (!owns) {
    KindScope scope(slot.grad_kind);
    grad = clone(grad);
  }
  grad.storage()->set_kind(slot.grad_kind);
  *total = std::move(grad);
  return *total;
}

void merge_stages(ValueSlot& slot) {
  for (ValueSlot::StageGrad& stage : slot.later_stages) {
    add_to(slot.grad, stage.grad, slot.grad_kind);
    stage.grad = Tensor();
  }
  slot.later_stages.clear();
}

Tensor whole_grad(const ValueSlot& slot) {
  if (slot.later_stages.empty()) return slot.grad;
  Tensor total = clone(slot.grad);
  for (const ValueSlot::StageGrad& stage : slot.later_stages) add_to(total, stage.grad, MemoryKind::temporary);
  return total;
}

void drop_grad(ValueSlot& slot) {
  slot.grad = Tensor();
  slot.later_stages.clear();
}

}  // namespace refrain
