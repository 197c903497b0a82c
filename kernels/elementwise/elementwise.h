// Elementwise kernels. Operands may be any strided views; inputs broadcast to the output's shape (NumPy's rule).
// Output and input may be the same view (in place), but must not overlap otherwise. f64 and f32.
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

// out = op(x, scalar), the scalar rounded to x's dtype first.
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

enum class BinaryOp : std::uint8_t { add, sub, mul, div, maximum, minimum };
std::string_view name_of(BinaryOp op);

// out = op(a, b). maximum and minimum are NaN where an operand is.
struct Binary {
  static constexpr std::string_view name = "binary";
  BinaryOp op;
  In a, b;
  Out out;
};
void validate(const Binary&);
Cost cost(const Binary&);
void run(Cpu, const Binary&);

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

// out = condition ? a : b. condition is bool; a, b and out share any dtype.
struct Where {
  static constexpr std::string_view name = "where";
  In condition, a, b;
  Out out;
};
void validate(const Where&);
Cost cost(const Where&);
void run(Cpu, const Where&);

}  // namespace refrain
