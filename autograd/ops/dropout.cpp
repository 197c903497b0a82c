#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/common_dtype.h>
#include <refrain/autograd/ops/dropout.h>
#include <refrain/autograd/ops/elementwise.h>
#include <refrain/autograd/ops/packed.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/autograd/random.h>
#include <refrain/kernels/dropout/dropout.h>

namespace refrain {

namespace {

// Which random numbers, how likely, from where on: what dropout saves in place of its mask.
struct Draw {
  double p = 0;
  RandomKey key;
  std::int64_t first = 0;
};

Draw element_draw(const Tensor& x, double p, const RandomDraw& random) {
  const std::int64_t batch = x.num_dims() > 0 ? x.dim(0) : 1;
  return {p, random.key, batch > 0 ? random.sample_offset * (x.numel() / batch) : 0};
}

void launch_dropout(const Tensor& x, const Tensor& residual, const Draw& draw, const Tensor& out) {
  launch(Dropout{.x = packed(x),
                 .residual = residual.defined() ? packed(residual) : residual,
                 .p = draw.p,
                 .key = draw.key,
                 .first_element = draw.first,
                 .out = out});
}

struct DropoutOp {
  static constexpr std::string_view name = "dropout";
  static constexpr Rebuild rebuild = Rebuild::from_input;
  struct Saved {
    Draw draw;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, const Draw& draw) {
    const Tensor out = op_output(x.shape(), x.dtype(), x.device());
    launch_dropout(x, {}, draw, out);
    return {out, {draw}};
  }
  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    return {needs[0] ? rebuild_output(saved, grad_out) : Tensor()};
  }
  static Tensor rebuild_output(const Saved& saved, const Tensor& x) {
    const Tensor out = empty(x.shape(), x.dtype(), x.device());
    launch_dropout(x, {}, saved.draw, out);
    return out;
  }
};

struct DropoutAdd {
  static constexpr std::string_view name = "dropout_add";
  struct Saved {
    Draw draw;
    DType x = DType::f32, residual = DType::f32;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, const Tensor& residual, const Draw& draw) {
    const Tensor out = op_output(x.shape(), common_dtype(x.dtype(), residual.dtype(), name), x.device());
    launch_dropout(x, residual, draw, out);
    return {out, {draw, x.dtype(), residual.dtype()}};
  }
  static Grads<2> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    Tensor grad_x;
    if (needs[0]) {
      grad_x = empty(grad_out.shape(), saved.x, grad_out.device());
      launch_dropout(grad_out, {}, saved.draw, grad_x);
    }
    return {grad_x, needs[1] ? sum_to(grad_out, grad_out.shape(), saved.residual) : Tensor()};
  }
};

struct StochasticDepthOp {
  static constexpr std::string_view name = "stochastic_depth";
  static constexpr Rebuild rebuild = Rebuild::from_input;
  struct Saved {
    Draw draw;
  };

  static std::pair<Tensor, Saved> forward(Needs, const Tensor& x, const Draw& draw) {
    const Tensor out = op_output(x.shape(), x.dtype(), x.device());
    drop(x, draw, out);
    return {out, {draw}};
  }
  static Grads<1> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    return {needs[0] ? rebuild_output(saved, grad_out) : Tensor()};
  }
  static Tensor rebuild_output(const Saved& saved, const Tensor& x) {
    const Tensor out = empty(x.shape(), x.dtype(), x.device());
    drop(x, saved.draw, out);
    return out;
  }

 private:
  static void drop(const Tensor& x, const Draw& draw, const Tensor& out) {
    launch(StochasticDepth{.x = packed(x), .p = draw.p, .key = draw.key, .first_sample = draw.first, .out = out});
  }
};

void check_probability(std::string_view op, double p) { check(p >= 0 && p <= 1, op, ": p must be in [0, 1], got ", p); }

}  // namespace

Tensor dropout(const Tensor& x, double p) {
  check_probability("dropout", p);
  return p == 0 ? x : apply<DropoutOp>(x, element_draw(x, p, next_random()));
}

Tensor dropout(const Tensor& x, double p, const Generator& generator) {
  check_probability("dropout", p);
  return p == 0 ? x : apply<DropoutOp>(x, element_draw(x, p, next_random(generator)));
}

Tensor dropout_add(const Tensor& x, const Tensor& residual, double p) {
  check_probability("dropout_add", p);
  check(x.shape() == residual.shape(), "dropout_add: residual must be ", x.shape(), ", got ", residual.shape());
  return p == 0 ? add(residual, x) : apply<DropoutAdd>(x, residual, element_draw(x, p, next_random()));
}

Tensor stochastic_depth(const Tensor& x, double p) {
  check_probability("stochastic_depth", p);
  if (p == 0) return x;
  const RandomDraw random = next_random();
  return apply<StochasticDepthOp>(x, Draw{p, random.key, random.sample_offset});
}

Tensor stochastic_depth(const Tensor& x, double p, const Generator& generator) {
  check_probability("stochastic_depth", p);
  if (p == 0) return x;
  const RandomDraw random = next_random(generator);
  return apply<StochasticDepthOp>(x, Draw{p, random.key, random.sample_offset});
}

}  // namespace refrain
