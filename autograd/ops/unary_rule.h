// The rule that all unary ops share: which value they save decides whether their output can be rebuilt.
#pragma once

#include <refrain/autograd/op.h>
#include <refrain/kernels/elementwise/elementwise.h>

namespace refrain {

// Saves its input: the output can then be had again for nothing more than arithmetic.
template <UnaryOp kOp>
struct SavesInput {
  static constexpr std::string_view name = name_of(kOp);
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
  static constexpr std::string_view name = name_of(kOp);
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
