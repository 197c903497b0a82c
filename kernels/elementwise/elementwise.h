// Elementwise kernels. Operands may be any strided views; inputs broadcast to the output's shape (NumPy's rule).
// Output and input may be the same view (in place), but must not overlap otherwise.
// f64, f32, f16 and bf16. 16-bit values are widened to f32 as they are read, computed with in f32, and rounded once, to
// nearest, ties to even, as results are stored. Where a kernel says "mixed", f32 operands and results and those of one
// 16-bit type may be combined as one likes; elsewhere all share a dtype.
#pragma once

#include <refrain/kernels/kernel.h>

namespace refrain {

enum class UnaryOp : std::uint8_t {
  neg, abs, exp, log, sqrt, rsqrt, reciprocal, square, sin, cos, tanh, sigmoid, relu,
  gelu_erf,   // x·Φ(x) (Hendrycks and Gimpel, "Gaussian error linear units", 2016)
  gelu_tanh,  // their approximation x/2·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
  silu        // x·sigmoid(x)
};
// The name of the differentiable function too.
constexpr std::string_view name_of(UnaryOp op) {
  switch (op) {
    case UnaryOp::neg: return "neg";
    case UnaryOp::abs: return "abs";
    case UnaryOp::exp: return "exp";
    case UnaryOp::log: return "log";
    case UnaryOp::sqrt: return "sqrt";
    case UnaryOp::rsqrt: return "rsqrt";
    case UnaryOp::reciprocal: return "reciprocal";
    case UnaryOp::square: return "square";
    case UnaryOp::sin: return "sin";
    case UnaryOp::cos: return "cos";
    case UnaryOp::tanh: return "tanh";
    case UnaryOp::sigmoid: return "sigmoid";
    case UnaryOp::relu: return "relu";
    case UnaryOp::gelu_erf: return "gelu";
    case UnaryOp::gelu_tanh: return "gelu";
    case UnaryOp::silu: return "silu";
  }
  return "?";
}

// out = op(x).
struct Unary {
  static constexpr std::string_view name = "unary";
  UnaryOp op;
  In x;
  Out out;
};
void validate(const Unary&);
Cost cost(const Unary&);
void run(Cpu, const Unary&);
void run(Cuda, const Unary&);

// Whether UnaryBackward reads op's output (its input otherwise; neg needs neither and has no such kernel).
bool backward_reads_output(UnaryOp op);

// out = grad_out · op'(x). `value` is the forward output where backward_reads_output(op), else the input.
struct UnaryBackward {
  static constexpr std::string_view name = "unary_backward";
  UnaryOp op;
  In grad_out, value;
  Out out;
};
void validate(const UnaryBackward&);
Cost cost(const UnaryBackward&);
void run(Cpu, const UnaryBackward&);
void run(Cuda, const UnaryBackward&);

enum class ScalarOp : std::uint8_t {
  add,       // x + s
  mul,       // x · s
  div,       // x / s
  rsub,      // s - x
  rdiv,      // s / x
  pow,       // x^s, as the C library's pow()
  maximum,   // max(x, s)
  minimum    // min(x, s)
};
std::string_view name_of(ScalarOp op);

// out = op(x, scalar), the scalar rounded first to the type of arithmetic: f64, or f32 for all others.
struct Scalar {
  static constexpr std::string_view name = "scalar";
  ScalarOp op;
  In x;
  double scalar;
  Out out;
};
void validate(const Scalar&);
Cost cost(const Scalar&);
void run(Cpu, const Scalar&);
void run(Cuda, const Scalar&);

// out = grad_out · d op(x, scalar) / dx for op rdiv, -(s / x) / x, or pow, s·x^(s - 1). The others need no such kernel.
struct ScalarBackward {
  static constexpr std::string_view name = "scalar_backward";
  ScalarOp op;
  In grad_out, x;
  double scalar;
  Out out;
};
void validate(const ScalarBackward&);
Cost cost(const ScalarBackward&);
void run(Cpu, const ScalarBackward&);
void run(Cuda, const ScalarBackward&);

enum class BinaryOp : std::uint8_t { add, sub, mul, div, maximum, minimum };
std::string_view name_of(BinaryOp op);

// out = op(a, b), mixed. maximum and minimum are NaN where an operand is.
struct Binary {
  static constexpr std::string_view name = "binary";
  BinaryOp op;
  In a, b;
  Out out;
};
void validate(const Binary&);
Cost cost(const Binary&);
void run(Cpu, const Binary&);
void run(Cuda, const Binary&);

// out = -(grad_out / b)·(a / b), mixed: the gradient of a / b with respect to b.
struct DivBackward {
  static constexpr std::string_view name = "div_backward";
  In grad_out, a, b;
  Out out;
};
void validate(const DivBackward&);
Cost cost(const DivBackward&);
void run(Cpu, const DivBackward&);
void run(Cuda, const DivBackward&);

enum class CompareOp : std::uint8_t { equal, not_equal, less, less_equal, greater, greater_equal };
std::string_view name_of(CompareOp op);

// out (bool) = a op b. Any dtype, the same for both.
struct Compare {
  static constexpr std::string_view name = "compare";
  CompareOp op;
  In a, b;
  Out out;
};
void validate(const Compare&);
Cost cost(const Compare&);
void run(Cpu, const Compare&);
void run(Cuda, const Compare&);

// out = condition ? a : b. condition is bool; a, b and out share any dtype, or are f32 but for one 16-bit operand.
struct Where {
  static constexpr std::string_view name = "where";
  In condition, a, b;
  Out out;
};
void validate(const Where&);
Cost cost(const Where&);
void run(Cpu, const Where&);
void run(Cuda, const Where&);

}  // namespace refrain
