// Names, validation and cost of the elementwise kernels.
#include <refrain/kernels/elementwise/elementwise.h>

#include <initializer_list>
#include <utility>

namespace refrain {

namespace {

void check_broadcasts(std::string_view kernel, std::string_view argument, const TensorArg& arg, const Shape& shape) {
  bool fits = arg.num_dims() <= shape.size();
  for (int i = 1; fits && i <= arg.num_dims(); ++i) {
    const std::int64_t extent = arg.dim(-i);
    fits = extent == 1 || extent == shape[shape.size() - i];
  }
  check(fits, kernel, ": ", argument, " of shape ", arg.shape(), " does not broadcast to ", shape);
}

void check_operand(std::string_view kernel, std::string_view argument, const TensorArg& arg, const TensorArg& out) {
  check_dtype(kernel, argument, arg, out.dtype());
  check_broadcasts(kernel, argument, arg, out.shape());
}

// Operands and result of f64 alone, or of f32 and at most one 16-bit type.
void check_mixed(std::string_view kernel, std::initializer_list<std::pair<std::string_view, const TensorArg*>> args, const TensorArg& out) {
  bool has[4] = {};  // f64, f32, f16, bf16
  for (const auto& [argument, arg] : args) {
    check_floating(kernel, argument, *arg);
    check_broadcasts(kernel, argument, *arg, out.shape());
    has[std::size_t(arg->dtype())] = true;
  }
  check_floating(kernel, "out", out);
  has[std::size_t(out.dtype())] = true;
  check(!has[2] || !has[3], kernel, ": f16 and bf16 do not mix; convert one of them first");
  check(!has[0] || !(has[1] || has[2] || has[3]), kernel, ": f64 does not mix with other dtypes; convert one of them first");
}

// An output that repeats elements would be written several times, in no order.
void check_output(std::string_view kernel, const TensorArg& out) {
  for (int i = 0; i < out.num_dims(); ++i) {
    check(out.dim(i) <= 1 || out.strides()[i] != 0, kernel, ": the output is an expanded view of shape ", out.shape());
  }
}

}  // namespace

std::string_view name_of(ScalarOp op) {
  switch (op) {
    case ScalarOp::add: return "add";
    case ScalarOp::mul: return "mul";
    case ScalarOp::div: return "div";
    case ScalarOp::rsub: return "rsub";
    case ScalarOp::rdiv: return "rdiv";
    case ScalarOp::pow: return "pow";
    case ScalarOp::maximum: return "maximum";
    case ScalarOp::minimum: return "minimum";
  }
  return "?";
}

std::string_view name_of(BinaryOp op) {
  switch (op) {
    case BinaryOp::add: return "add";
    case BinaryOp::sub: return "sub";
    case BinaryOp::mul: return "mul";
    case BinaryOp::div: return "div";
    case BinaryOp::maximum: return "maximum";
    case BinaryOp::minimum: return "minimum";
  }
  return "?";
}

std::string_view name_of(CompareOp op) {
  switch (op) {
    case CompareOp::equal: return "equal";
    case CompareOp::not_equal: return "not_equal";
    case CompareOp::less: return "less";
    case CompareOp::less_equal: return "less_equal";
    case CompareOp::greater: return "greater";
    case CompareOp::greater_equal: return "greater_equal";
  }
  return "?";
}

// Floating-point operations an element costs, as written in the kernels; a polynomial's fma counts as two.
namespace {

double flops_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::neg:
    case UnaryOp::abs:
    case UnaryOp::square:
    case UnaryOp::sqrt:
    case UnaryOp::reciprocal:
    case UnaryOp::relu: return 1;
    case UnaryOp::rsqrt: return 2;
    case UnaryOp::exp:
    case UnaryOp::log:
    case UnaryOp::sin:
    case UnaryOp::cos: return 22;
    case UnaryOp::tanh:
    case UnaryOp::sigmoid:
    case UnaryOp::silu: return 26;
    case UnaryOp::gelu_tanh: return 32;
    case UnaryOp::gelu_erf: return 50;
  }
  return 1;
}

}  // namespace

bool backward_reads_output(UnaryOp op) {
  switch (op) {
    case UnaryOp::exp:
    case UnaryOp::sqrt:
    case UnaryOp::rsqrt:
    case UnaryOp::reciprocal:
    case UnaryOp::tanh:
    case UnaryOp::sigmoid:
    case UnaryOp::relu: return true;
    default: return false;
  }
}

void validate(const Unary& k) {
  check_floating(name_of(k.op), "x", k.x);
  check_operand(name_of(k.op), "x", k.x, k.out);
  check_output(name_of(k.op), k.out);
}
Cost cost(const Unary& k) { return {flops_of(k.op) * double(k.out.numel()), k.x.bytes() + k.out.bytes()}; }

void validate(const UnaryBackward& k) {
  check(k.op != UnaryOp::neg, "unary_backward: the gradient of neg is neg of the gradient");
  check_floating(name_of(k.op), "grad_out", k.grad_out);
  check_operand(name_of(k.op), "grad_out", k.grad_out, k.out);
  check_operand(name_of(k.op), "value", k.value, k.out);
  check_output(name_of(k.op), k.out);
}
Cost cost(const UnaryBackward& k) {
  const double flops = backward_reads_output(k.op) ? 3 : flops_of(k.op) + 3;
  return {flops * double(k.out.numel()), k.grad_out.bytes() + k.value.bytes() + k.out.bytes()};
}

void validate(const Scalar& k) {
  check_floating(name_of(k.op), "x", k.x);
  check_operand(name_of(k.op), "x", k.x, k.out);
  check_output(name_of(k.op), k.out);
}
Cost cost(const Scalar& k) { return {double(k.out.numel()), k.x.bytes() + k.out.bytes()}; }

void validate(const ScalarBackward& k) {
  check(k.op == ScalarOp::rdiv || k.op == ScalarOp::pow, k.name, ": op must be rdiv or pow");
  check_floating(name_of(k.op), "grad_out", k.grad_out);
  check_operand(name_of(k.op), "grad_out", k.grad_out, k.out);
  check_operand(name_of(k.op), "x", k.x, k.out);
  check_output(name_of(k.op), k.out);
}
Cost cost(const ScalarBackward& k) { return {3 * double(k.out.numel()), k.grad_out.bytes() + k.x.bytes() + k.out.bytes()}; }

void validate(const Binary& k) {
  check_mixed(name_of(k.op), {{"a", &k.a}, {"b", &k.b}}, k.out);
  check_output(name_of(k.op), k.out);
}
Cost cost(const Binary& k) { return {double(k.out.numel()), k.a.bytes() + k.b.bytes() + k.out.bytes()}; }

void validate(const DivBackward& k) {
  check_mixed(k.name, {{"grad_out", &k.grad_out}, {"a", &k.a}, {"b", &k.b}}, k.out);
  check_output(k.name, k.out);
}
Cost cost(const DivBackward& k) { return {4 * double(k.out.numel()), k.grad_out.bytes() + k.a.bytes() + k.b.bytes() + k.out.bytes()}; }

void validate(const Compare& k) {
  check_dtype(name_of(k.op), "out", k.out, DType::boolean);
  check_dtype(name_of(k.op), "b", k.b, k.a.dtype());
  check_broadcasts(name_of(k.op), "a", k.a, k.out.shape());
  check_broadcasts(name_of(k.op), "b", k.b, k.out.shape());
  check_output(name_of(k.op), k.out);
}
Cost cost(const Compare& k) { return {double(k.out.numel()), k.a.bytes() + k.b.bytes() + k.out.bytes()}; }

void validate(const Where& k) {
  check_dtype(k.name, "condition", k.condition, DType::boolean);
  check_broadcasts(k.name, "condition", k.condition, k.out.shape());
  if (k.a.dtype() == k.b.dtype()) {
    check_operand(k.name, "a", k.a, k.out);
    check_operand(k.name, "b", k.b, k.out);
  } else {
    check_mixed(k.name, {{"a", &k.a}, {"b", &k.b}}, k.out);
    check_dtype(k.name, "out", k.out, DType::f32);
  }
  check_output(k.name, k.out);
}
Cost cost(const Where& k) { return {0, k.condition.bytes() + k.a.bytes() + k.b.bytes() + k.out.bytes()}; }

}  // namespace refrain
