#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/packed.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/ops/view.h>
#include <refrain/core/view.h>

namespace refrain {

namespace {

// A gradient of `shape` that is grad where `part` looks and 0 elsewhere.
template <class Part>
Tensor scattered(const Shape& shape, const Tensor& grad, Part&& part) {
  const Tensor whole = zeros(shape, grad.dtype(), grad.device());
  launch(Convert{.x = grad, .out = part(whole)});
  return whole;
}

struct Slice {
  static constexpr std::string_view name = "slice";
  static constexpr Rebuild rebuild = Rebuild::from_input;
  struct Saved {
    Shape shape;
    int dim = 0;
    std::int64_t begin = 0, end = 0, step = 1;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, int dim, std::int64_t begin, std::int64_t end, std::int64_t step) {
    return {view::slice(x, dim, begin, end, step), {x.shape(), dim, begin, end, step}};
  }
  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    if (!needs[0]) return {Tensor()};
    return {scattered(saved.shape, grad_out, [&](const Tensor& t) { return rebuild_output(saved, t); })};
  }
  static Tensor rebuild_output(const Saved& saved, const Tensor& x) {
    return view::slice(x, saved.dim, saved.begin, saved.end, saved.step);
  }
};

struct Select {
  static constexpr std::string_view name = "select";
  static constexpr Rebuild rebuild = Rebuild::from_input;
  struct Saved {
    Shape shape;
    int dim = 0;
    std::int64_t index = 0;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, int dim, std::int64_t index) {
    return {view::select(x, dim, index), {x.shape(), dim, index}};
  }
  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    if (!needs[0]) return {Tensor()};
    return {scattered(saved.shape, grad_out, [&](const Tensor& t) { return rebuild_output(saved, t); })};
  }
  static Tensor rebuild_output(const Saved& saved, const Tensor& x) { return view::select(x, saved.dim, saved.index); }
};

struct Permute {
  static constexpr std::string_view name = "permute";
  static constexpr Rebuild rebuild = Rebuild::from_input;
  struct Saved {
    Dims dims, inverse;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, const Dims& dims) {
    const Tensor out = view::permute(x, dims);
    Dims inverse = dims;
    for (int i = 0; i < dims.size(); ++i) inverse[normalize_dim(int(dims[i]), dims.size(), name)] = i;
    return {out, {dims, inverse}};
  }
  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    return {needs[0] ? view::permute(grad_out, saved.inverse) : Tensor()};
  }
  static Tensor rebuild_output(const Saved& saved, const Tensor& x) { return view::permute(x, saved.dims); }
};

struct Transpose {
  static constexpr std::string_view name = "transpose";
  static constexpr Rebuild rebuild = Rebuild::from_input;
  struct Saved {
    int dim0 = 0, dim1 = 0;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, int dim0, int dim1) {
    return {view::transpose(x, dim0, dim1), {dim0, dim1}};
  }
  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    return {needs[0] ? view::transpose(grad_out, saved.dim0, saved.dim1) : Tensor()};
  }
  static Tensor rebuild_output(const Saved& saved, const Tensor& x) { return view::transpose(x, saved.dim0, saved.dim1); }
};

struct Reshape {
  static constexpr std::string_view name = "reshape";
  static constexpr Rebuild rebuild = Rebuild::from_input;
  struct Saved {
    Shape from, to;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, const Shape& shape) {
    const Shape to = view::resolve_shape(shape, x.numel());
    if (view::can_reshape(x, to)) return {view::reshape(x, to), {x.shape(), to}};
    const Tensor out = op_output(to, x.dtype(), x.device());
    launch(Convert{.x = x, .out = view::reshape(out, x.shape())});
    return {out, {x.shape(), to}};
  }
  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    return {needs[0] ? view::reshape(grad_out, saved.from) : Tensor()};
  }
  static Tensor rebuild_output(const Saved& saved, const Tensor& x) {
    return view::reshape(view::can_reshape(x, saved.to) ? x : packed(x), saved.to);
  }
};

struct Expand {
  static constexpr std::string_view name = "expand";
  static constexpr Rebuild rebuild = Rebuild::from_input;
  struct Saved {
    Shape from, to;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, const Shape& shape) {
    return {view::expand(x, shape), {x.shape(), shape}};
  }
  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    return {needs[0] ? sum_to(grad_out, saved.from) : Tensor()};
  }
  static Tensor rebuild_output(const Saved& saved, const Tensor& x) { return view::expand(x, saved.to); }
};

struct Contiguous {
  static constexpr std::string_view name = "contiguous";
  static constexpr Rebuild rebuild = Rebuild::from_input;
  struct Saved {};

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x) {
    const Tensor out = op_output(x.shape(), x.dtype(), x.device());
    launch(Convert{.x = x, .out = out});
    return {out, {}};
  }
  static Grads<1> backward(const Saved&, const Tensor& grad_out, Needs needs) { return {needs[0] ? grad_out : Tensor()}; }
  static Tensor rebuild_output(const Saved&, const Tensor& x) { return packed(x); }
};

}  // namespace

Tensor slice(const Tensor& x, int dim, std::int64_t begin, std::int64_t end, std::int64_t step) {
  return apply<Slice>(x, dim, begin, end, step);
}
Tensor select(const Tensor& x, int dim, std::int64_t index) { return apply<Select>(x, dim, index); }
Tensor transpose(const Tensor& x, int dim0, int dim1) { return apply<Transpose>(x, dim0, dim1); }
Tensor permute(const Tensor& x, const Dims& dims) { return apply<Permute>(x, dims); }
Tensor reshape(const Tensor& x, const Shape& shape) { return apply<Reshape>(x, shape); }
Tensor expand(const Tensor& x, const Shape& shape) { return apply<Expand>(x, shape); }
Tensor contiguous(const Tensor& x) { return x.is_contiguous() ? x : apply<Contiguous>(x); }

Tensor unsqueeze(const Tensor& x, int dim) {
  Shape shape = x.shape();
  shape.insert(normalize_dim(dim, x.num_dims() + 1, "unsqueeze"), 1);
  return reshape(x, shape);
}

Tensor squeeze(const Tensor& x, int dim) {
  const int d = normalize_dim(dim, x.num_dims(), "squeeze");
  check(x.shape()[d] == 1, "squeeze: dim ", d, " of ", x.shape(), " has not extent 1");
  Shape shape = x.shape();
  shape.erase(d);
  return reshape(x, shape);
}

Tensor flatten(const Tensor& x, int first, int last) {
  if (x.num_dims() == 0) return reshape(x, {1});
  const int begin = normalize_dim(first, x.num_dims(), "flatten"), end = normalize_dim(last, x.num_dims(), "flatten");
  check(begin <= end, "flatten: dims ", first, " to ", last, " of ", x.shape());
  Shape shape;
  for (int i = 0; i < x.num_dims(); ++i) {
    if (i <= begin || i > end)
      shape.push_back(x.shape()[i]);
    else
      shape[begin] *= x.shape()[i];
  }
  return reshape(x, shape);
}

}  // namespace refrain
