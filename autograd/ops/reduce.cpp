#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/packed.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/core/view.h>
#include <refrain/kernels/elementwise/elementwise.h>
#include <refrain/kernels/reduce/reduce.h>

namespace refrain {

namespace {

// x's shape with extent 1 at the dims.
Shape kept_shape(const Shape& shape, const Dims& dims, std::string_view op) {
  Shape kept = shape;
  unsigned seen = 0;
  for (std::int64_t dim : dims) {
    const int d = normalize_dim(int(dim), shape.size(), op);
    check(!(seen & (1u << d)), op, ": dim ", d, " is named twice in ", dims);
    seen |= 1u << d;
    kept[d] = 1;
  }
  return kept;
}

Shape dropped_shape(const Shape& shape, const Dims& dims) {
  bool drops[kMaxDims] = {};
  for (std::int64_t dim : dims) drops[normalize_dim(int(dim), shape.size(), "sum")] = true;
  Shape result;
  for (int i = 0; i < shape.size(); ++i) {
    if (!drops[i]) result.push_back(shape[i]);
  }
  return result;
}

void launch_sum(const Tensor& x, const Tensor& out, double scale) {
  Tensor scratch;
  if (const std::int64_t numel = sum_scratch_numel(x.shape(), out.shape())) {
    KindScope kind(MemoryKind::workspace);
    scratch = empty({numel}, accumulator_dtype(x.dtype()), x.device());
  }
  launch(Sum{.x = packed(x), .scale = scale, .out = out, .scratch = scratch});
}

template <bool kIsMean>
struct SumOver {
  static constexpr std::string_view name = kIsMean ? "mean" : "sum";
  struct Saved {
    Shape shape, kept;
    double scale = 1;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, const Dims& dims, bool keepdim) {
    const Shape kept = kept_shape(x.shape(), dims, name);
    double scale = 1;
    if constexpr (kIsMean) {
      double count = 1;
      for (std::int64_t dim : dims) count *= double(x.shape()[normalize_dim(int(dim), x.num_dims(), name)]);
      scale = 1 / count;
    }
    const Tensor out = op_output(keepdim ? kept : dropped_shape(x.shape(), dims), x.dtype(), x.device());
    launch_sum(x, view::reshape(out, kept), scale);
    return {out, {x.shape(), kept, scale}};
  }

  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    if (!needs[0]) return {Tensor()};
    Tensor grad = grad_out;
    if constexpr (kIsMean) {
      grad = empty_like(grad_out);
      launch(Scalar{.op = ScalarOp::mul, .x = grad_out, .scalar = saved.scale, .out = grad});
    }
    return {view::expand(view::reshape(grad, saved.kept), saved.shape)};
  }
};

struct MaxOver {
  static constexpr std::string_view name = "max";
  struct Saved {
    SavedTensor indices;
    Shape shape;
    int dim = 0;
  };

  static std::pair<std::array<Tensor, 2>, Saved> forward(Needs needs, const Tensor& x, int dim) {
    const int d = normalize_dim(dim, x.num_dims(), name);
    Shape shape = x.shape();
    shape.erase(d);
    const Tensor values = op_output(shape, x.dtype(), x.device()), indices = op_output(shape, DType::i64, x.device());
    launch(Max{.x = packed(x), .dim = d, .out = values, .indices = indices});
    return {{values, indices}, {needs[0] ? indices : Tensor(), x.shape(), d}};
  }

  static Grads<1> backward(const Saved& saved, const std::array<Tensor, 2>& grad_outs, Needs needs) {
    if (!needs[0] || !grad_outs[0].defined()) return {Tensor()};
    const Tensor grad = empty(saved.shape, grad_outs[0].dtype(), grad_outs[0].device());
    launch(MaxBackward{.grad_out = grad_outs[0], .indices = saved.indices.get(), .dim = saved.dim, .out = grad});
    return {grad};
  }
};

Dims all_dims(const Tensor& x) {
  Dims dims;
  for (int i = 0; i < x.num_dims(); ++i) dims.push_back(i);
  return dims;
}

}  // namespace

Tensor sum(const Tensor& x, const Dims& dims, bool keepdim) { return apply<SumOver<false>>(x, dims, keepdim); }
Tensor sum(const Tensor& x) { return sum(x, all_dims(x)); }
Tensor mean(const Tensor& x, const Dims& dims, bool keepdim) { return apply<SumOver<true>>(x, dims, keepdim); }
Tensor mean(const Tensor& x) { return mean(x, all_dims(x)); }

MaxResult max(const Tensor& x, int dim, bool keepdim) {
  const int d = normalize_dim(dim, x.num_dims(), "max");
  if (keepdim) {
    // A dim of extent 1 in front of the one that goes: it is what stays.
    Shape shape = x.shape();
    shape.insert(d, 1);
    return max(reshape(x, shape), d + 1);
  }
  auto [values, indices] = apply<MaxOver>(x, d);
  return {values, indices};
}

Tensor sum_to(const Tensor& grad, const Shape& shape) { return sum_to(grad, shape, grad.dtype()); }

Tensor sum_to(const Tensor& grad, const Shape& shape, DType dtype) {
  if (grad.shape() == shape && grad.dtype() == dtype) return grad;
  const Tensor out = empty(shape, dtype, grad.device());
  if (grad.shape() == shape) launch(Convert{.x = grad, .out = out});
  else launch_sum(grad, out, 1);
  return out;
}

Tensor squared_norm(const Tensor& x) {
  const Tensor out = empty({}, DType::f64, x.device());
  Tensor scratch;
  {
    KindScope kind(MemoryKind::workspace);
    scratch = empty({squared_norm_scratch_numel(x.numel())}, DType::f64, x.device());
  }
  launch(SquaredNorm{.x = packed(x), .out = out, .scratch = scratch});
  return out;
}

}  // namespace refrain
