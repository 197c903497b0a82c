#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/common_dtype.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/ops/unary_rule.h>

namespace refrain {

namespace {

void launch_binary(BinaryOp op, const Tensor& a, const Tensor& b, const Tensor& out) {
  launch(Binary{.op = op, .a = a, .b = b, .out = out});
}

void launch_scalar(ScalarOp op, const Tensor& x, double scalar, const Tensor& out) {
  launch(Scalar{.op = op, .x = x, .scalar = scalar, .out = out});
}

Tensor negated(const Tensor& t) {
  const Tensor out = empty(t.shape(), t.dtype(), t.device());
  launch(Unary{.op = UnaryOp::neg, .x = t, .out = out});
  return out;
}

Tensor binary_output(const Tensor& a, const Tensor& b, std::string_view op) {
  const DType dtype = common_dtype(a.dtype(), b.dtype(), op);
  return op_output(broadcast_shapes(a.shape(), b.shape(), op), dtype, a.device());
}

// What an operand's gradient must look like.
struct Like {
  Shape shape;
  DType dtype = DType::f32;

  Like() = default;
  Like(const Tensor& t) : shape(t.shape()), dtype(t.dtype()) {}

  // The gradient that `launch_into` writes for the broadcast operand, summed over what was broadcast. It is rounded once:
  // as it is written where nothing is to be summed; terms of a sum are not rounded to 16 bits.
  template <class F>
  Tensor gradient(const Tensor& grad_out, F&& launch_into) const {
    const bool is_broadcast = grad_out.shape() != shape;
    const Tensor grad = empty(grad_out.shape(), is_broadcast ? accumulator_dtype(grad_out.dtype()) : dtype, grad_out.device());
    launch_into(grad);
    return sum_to(grad, shape, dtype);
  }
};

template <BinaryOp kOp>
struct AddOrSub {
  static constexpr std::string_view name = kOp == BinaryOp::add ? "add" : "sub";
  struct Saved {
    Like a, b;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& a, const Tensor& b) {
    const Tensor out = binary_output(a, b, name);
    launch_binary(kOp, a, b, out);
    return {out, {a, b}};
  }

  static Grads<2> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    Tensor grad_a, grad_b;
    if (needs[0]) grad_a = sum_to(grad_out, saved.a.shape, saved.a.dtype);
    if (needs[1]) grad_b = sum_to(grad_out, saved.b.shape, saved.b.dtype);
    if (needs[1] && kOp == BinaryOp::sub) grad_b = negated(grad_b);
    return {grad_a, grad_b};
  }
};

struct Mul {
  static constexpr std::string_view name = "mul";
  struct Saved {
    SavedTensor a, b;
    Like like_a, like_b;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& a, const Tensor& b) {
    const Tensor out = binary_output(a, b, name);
    launch_binary(BinaryOp::mul, a, b, out);
    return {out, {needs[1] ? a : Tensor(), needs[0] ? b : Tensor(), a, b}};
  }

  static Grads<2> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    const auto grad = [&](const SavedTensor& other, const Like& like) {
      return like.gradient(grad_out, [&](const Tensor& out) { launch_binary(BinaryOp::mul, grad_out, other.get(), out); });
    };
    Tensor grad_a, grad_b;
    if (needs[0]) grad_a = grad(saved.b, saved.like_a);
    if (needs[1]) grad_b = grad(saved.a, saved.like_b);
    return {grad_a, grad_b};
  }
};

struct Div {
  static constexpr std::string_view name = "div";
  struct Saved {
    SavedTensor a, b;
    Like like_a, like_b;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& a, const Tensor& b) {
    const Tensor out = binary_output(a, b, name);
    launch_binary(BinaryOp::div, a, b, out);
    return {out, {needs[1] ? a : Tensor(), needs.any() ? b : Tensor(), a, b}};
  }

  static Grads<2> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    const Tensor b = saved.b.get();
    Tensor grad_a, grad_b;
    if (needs[0]) grad_a = saved.like_a.gradient(grad_out, [&](const Tensor& out) { launch_binary(BinaryOp::div, grad_out, b, out); });
    if (needs[1]) {
      grad_b = saved.like_b.gradient(grad_out, [&](const Tensor& out) {
        launch(DivBackward{.grad_out = grad_out, .a = saved.a.get(), .b = b, .out = out});
      });
    }
    return {grad_a, grad_b};
  }
};

constexpr std::string_view scalar_name(ScalarOp op) {
  switch (op) {
    case ScalarOp::add: return "add";
    case ScalarOp::mul: return "mul";
    case ScalarOp::div:
    case ScalarOp::rdiv: return "div";
    case ScalarOp::rsub: return "sub";
    default: return "scalar";
  }
}

// x op scalar for the ops whose slope is a constant: nothing is saved, and the output can be rebuilt from the input.
template <ScalarOp kOp>
struct LinearScalar {
  static constexpr std::string_view name = scalar_name(kOp);
  static constexpr Rebuild rebuild = Rebuild::from_input;
  struct Saved {
    double scalar = 0;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, double scalar) {
    const Tensor out = op_output(x.shape(), x.dtype(), x.device());
    launch_scalar(kOp, x, scalar, out);
    return {out, {scalar}};
  }

  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    if (!needs[0]) return {Tensor()};
    if constexpr (kOp == ScalarOp::add) return {grad_out};
    if constexpr (kOp == ScalarOp::rsub) return {negated(grad_out)};
    const Tensor grad = empty_like(grad_out);
    launch_scalar(kOp, grad_out, saved.scalar, grad);
    return {grad};
  }

  static Tensor rebuild_output(const Saved& saved, const Tensor& x) {
    const Tensor out = empty(x.shape(), x.dtype(), x.device());
    launch_scalar(kOp, x, saved.scalar, out);
    return out;
  }
};

struct ScalarOverTensor {
  static constexpr std::string_view name = "div";
  struct Saved {
    SavedTensor x;
    double scalar = 0;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x, double scalar) {
    const Tensor out = op_output(x.shape(), x.dtype(), x.device());
    launch_scalar(ScalarOp::rdiv, x, scalar, out);
    return {out, {needs[0] ? x : Tensor(), scalar}};
  }

  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    if (!needs[0]) return {Tensor()};
    const Tensor grad = empty_like(grad_out);
    launch(ScalarBackward{.op = ScalarOp::rdiv, .grad_out = grad_out, .x = saved.x.get(), .scalar = saved.scalar, .out = grad});
    return {grad};
  }
};

struct Pow {
  static constexpr std::string_view name = "pow";
  struct Saved {
    SavedTensor x;
    double exponent = 1;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& x, double exponent) {
    const Tensor out = op_output(x.shape(), x.dtype(), x.device());
    launch_scalar(ScalarOp::pow, x, exponent, out);
    return {out, {needs[0] ? x : Tensor(), exponent}};
  }

  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    if (!needs[0]) return {Tensor()};
    const Tensor grad = empty_like(grad_out);
    if (saved.exponent == 0) {  // not 0·x^-1, which is NaN at 0
      fill_values(grad, 0);
      return {grad};
    }
    launch(ScalarBackward{.op = ScalarOp::pow, .grad_out = grad_out, .x = saved.x.get(), .scalar = saved.exponent, .out = grad});
    return {grad};
  }
};

struct Neg {
  static constexpr std::string_view name = "neg";
  static constexpr Rebuild rebuild = Rebuild::from_input;
  struct Saved {};

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x) {
    const Tensor out = op_output(x.shape(), x.dtype(), x.device());
    launch(Unary{.op = UnaryOp::neg, .x = x, .out = out});
    return {out, {}};
  }
  static Grads<1> backward(const Saved&, const Tensor& grad_out, Needs needs) { return {needs[0] ? negated(grad_out) : Tensor()}; }
  static Tensor rebuild_output(const Saved&, const Tensor& x) { return negated(x); }
};

struct WhereOp {
  static constexpr std::string_view name = "where";
  struct Saved {
    SavedTensor condition;
    Like a, b;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& condition, const Tensor& a, const Tensor& b) {
    check(condition.dtype() == DType::boolean, name, ": condition must be bool, got ", condition.dtype());
    const DType dtype = common_dtype(a.dtype(), b.dtype(), name);
    const Shape shape = broadcast_shapes(condition.shape(), broadcast_shapes(a.shape(), b.shape(), name), name);
    const Tensor out = op_output(shape, dtype, a.device());
    launch(Where{.condition = condition, .a = a, .b = b, .out = out});
    return {out, {needs.any() ? condition : Tensor(), a, b}};
  }

  static Grads<3> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    const Tensor condition = saved.condition.get();
    const Tensor zero = zeros({}, grad_out.dtype(), grad_out.device());
    Tensor grad_a, grad_b;
    if (needs[1]) {
      const Tensor chosen = empty_like(grad_out);
      launch(Where{.condition = condition, .a = grad_out, .b = zero, .out = chosen});
      grad_a = sum_to(chosen, saved.a.shape, saved.a.dtype);
    }
    if (needs[2]) {
      const Tensor chosen = empty_like(grad_out);
      launch(Where{.condition = condition, .a = zero, .b = grad_out, .out = chosen});
      grad_b = sum_to(chosen, saved.b.shape, saved.b.dtype);
    }
    return {Tensor(), grad_a, grad_b};
  }
};

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) { return apply<AddOrSub<BinaryOp::add>>(a, b); }
Tensor sub(const Tensor& a, const Tensor& b) { return apply<AddOrSub<BinaryOp::sub>>(a, b); }
Tensor mul(const Tensor& a, const Tensor& b) { return apply<Mul>(a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return apply<Div>(a, b); }

Tensor add(const Tensor& x, double scalar) { return apply<LinearScalar<ScalarOp::add>>(x, scalar); }
Tensor sub(const Tensor& x, double scalar) { return apply<LinearScalar<ScalarOp::add>>(x, -scalar); }
Tensor mul(const Tensor& x, double scalar) { return apply<LinearScalar<ScalarOp::mul>>(x, scalar); }
Tensor div(const Tensor& x, double scalar) { return apply<LinearScalar<ScalarOp::div>>(x, scalar); }
Tensor sub(double scalar, const Tensor& x) { return apply<LinearScalar<ScalarOp::rsub>>(x, scalar); }
Tensor div(double scalar, const Tensor& x) { return apply<ScalarOverTensor>(x, scalar); }
Tensor pow(const Tensor& x, double exponent) { return apply<Pow>(x, exponent); }

Tensor neg(const Tensor& x) { return apply<Neg>(x); }
Tensor abs(const Tensor& x) { return apply<SavesInput<UnaryOp::abs>>(x); }
Tensor square(const Tensor& x) { return apply<SavesInput<UnaryOp::square>>(x); }
Tensor log(const Tensor& x) { return apply<SavesInput<UnaryOp::log>>(x); }
Tensor sin(const Tensor& x) { return apply<SavesInput<UnaryOp::sin>>(x); }
Tensor cos(const Tensor& x) { return apply<SavesInput<UnaryOp::cos>>(x); }
Tensor exp(const Tensor& x) { return apply<SavesOutput<UnaryOp::exp>>(x); }
Tensor sqrt(const Tensor& x) { return apply<SavesOutput<UnaryOp::sqrt>>(x); }
Tensor rsqrt(const Tensor& x) { return apply<SavesOutput<UnaryOp::rsqrt>>(x); }
Tensor reciprocal(const Tensor& x) { return apply<SavesOutput<UnaryOp::reciprocal>>(x); }

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) { return apply<WhereOp>(condition, a, b); }

}  // namespace refrain
