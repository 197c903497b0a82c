#include <refrain/autograd/accumulate.h>
#include <refrain/kernels/elementwise/elementwise.h>

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

void accumulate_leaf(Tensor& total, Tensor grad) {
  if (total.defined()) return add_to(total, grad, MemoryKind::gradient);
  const bool owns = grad.is_sole_owner() && grad.is_contiguous() && grad.storage()->bytes() == grad.bytes() && grad.storage()->num_saved() == 0;
  if (!owns) {
    KindScope scope(MemoryKind::gradient);
    grad = clone(grad);
  }
  grad.storage()->set_kind(MemoryKind::gradient);
  total = std::move(grad);
}

}  // namespace refrain
