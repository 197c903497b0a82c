// The rule that all unary ops share: which value they save decides whether their output can be rebuilt.
#pragma once

#include <refrain/autograd/op.h>
#include <refrain/kernels/elementwise/elementwise.h>

namespace refrain {

// Names as the public functions have them.
constexpr std::string_view function_name(UnaryOp op) {
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
    case UnaryOp::gelu_erf:
    case UnaryOp::gelu_tanh: return "gelu";
    case UnaryOp::silu: return "silu";
  }
  return "unary";
}

// Saves its input: the output can then be had again for nothing more than arithmetic.
template <UnaryOp kOp>
struct SavesInput {
  static constexpr std::string_view name = function_name(kOp);
  static constexpr Rebuild rebuild = Rebuild::from_saved;
  struct Saved {
    SavedTensor x;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x) {
    const Tensor out = op_output(x.shape(), x.dtype(), x.device());
    launch(Unary{.op = kOp, .x = x, .out = out});
    return {out, {needs[0] ? x : Tensor()}};
  }

  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    if (!needs[0]) return {Tensor()};
    const Tensor grad = empty_like(grad_out);
    launch(UnaryBackward{.op = kOp, .grad_out = grad_out, .value = saved.x.get(), .out = grad});
    return {grad};
  }

  static Tensor rebuild_output(const Saved& saved) {
    const Tensor x = saved.x.get();
    const Tensor out = empty(x.shape(), x.dtype(), x.device());
    launch(Unary{.op = kOp, .x = x, .out = out});
    return out;
  }
};

// Saves its output, which a reader of the output then shares.
template <UnaryOp kOp>
struct SavesOutput {
  static constexpr std::string_view name = function_name(kOp);
  struct Saved {
    SavedTensor out;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x) {
    const Tensor out = op_output(x.shape(), x.dtype(), x.device());
    launch(Unary{.op = kOp, .x = x, .out = out});
    return {out, {needs[0] ? out : Tensor()}};
  }

  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    if (!needs[0]) return {Tensor()};
    const Tensor grad = empty_like(grad_out);
    launch(UnaryBackward{.op = kOp, .grad_out = grad_out, .value = saved.out.get(), .out = grad});
    return {grad};
  }
};

}  // namespace refrain
