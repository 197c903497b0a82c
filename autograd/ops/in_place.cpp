#include <refrain/autograd/ops/in_place.h>
#include <refrain/autograd/tape.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/kernels/elementwise/elementwise.h>

namespace refrain {

namespace {

// Throws before anything is changed; `instead` is what to call in its place.
void check_writable(std::string_view op, std::string_view instead, const Tensor& t, const Tensor& operand = {}) {
  if (!is_grad_enabled()) return;
  check(!t.requires_grad(), op, ": a tensor of shape ", t.shape(), " that wants a gradient cannot be changed in place; use ", instead,
        ", or NoGradScope to change its value alone");
  check(t.storage() == nullptr || t.storage()->num_saved() == 0, op, ": a tensor of shape ", t.shape(),
        " shares bytes with a value that backward will read; use ", instead);
  check(!operand.requires_grad(), op, ": the operand wants a gradient, which a change in place would lose; use ", instead);
}

void note_change(const Tensor& t) {
  if (t.storage() != nullptr) t.storage()->bump_version();
}

void apply_binary(std::string_view op, BinaryOp kind, const Tensor& t, const Tensor& other) {
  check_writable(op, name_of(kind), t, other);
  launch(Binary{.op = kind, .a = t, .b = other, .out = t});
  note_change(t);
}

void apply_scalar(std::string_view op, ScalarOp kind, const Tensor& t, double scalar) {
  check_writable(op, name_of(kind), t);
  launch(Scalar{.op = kind, .x = t, .scalar = scalar, .out = t});
  note_change(t);
}

}  // namespace

void add_(const Tensor& t, const Tensor& other) { apply_binary("add_", BinaryOp::add, t, other); }
void mul_(const Tensor& t, const Tensor& other) { apply_binary("mul_", BinaryOp::mul, t, other); }
void add_(const Tensor& t, double scalar) { apply_scalar("add_", ScalarOp::add, t, scalar); }
void mul_(const Tensor& t, double scalar) { apply_scalar("mul_", ScalarOp::mul, t, scalar); }

void fill_(const Tensor& t, double value) {
  check_writable("fill_", "full", t);
  fill_values(t, value);
}

void zero_(const Tensor& t) {
  check_writable("zero_", "zeros", t);
  fill_values(t, 0);
}

void copy_(const Tensor& t, const Tensor& source) {
  check_writable("copy_", "convert or the source itself", t, source);
  launch(Convert{.x = source, .out = t});
  note_change(t);
}

void relu_(const Tensor& t) {
  check_writable("relu_", "relu", t);
  launch(Unary{.op = UnaryOp::relu, .x = t, .out = t});
  note_change(t);
}

}  // namespace refrain
