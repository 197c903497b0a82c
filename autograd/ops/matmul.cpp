#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/matmul.h>
#include <refrain/autograd/ops/product_workspace.h>
#include <refrain/autograd/ops/reduce.h>
#include <refrain/core/view.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/kernels/matmul/matmul.h>

namespace refrain {

namespace {

// t itself where gemm can read it, else a contiguous copy.
Tensor readable(const Tensor& t) { return gemm_layout(t.shape(), t.strides()) ? t : contiguous_values(t); }

Tensor transposed(const Tensor& t) { return view::transpose(t, -2, -1); }

// All dims but the last as one: with a b of 2 dims a batch of products is one tall product.
Tensor as_rows(const Tensor& t) {
  const Tensor values = contiguous_values(t);
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < t.num_dims(); ++i) rows *= t.dim(i);
  return view::reshape(values, {rows, t.dim(-1)});
}

Shape batch_of(const Tensor& t) { return Shape(std::span(t.shape().begin(), std::size_t(t.num_dims() - 2))); }

Shape product_shape(const Tensor& a, const Tensor& b) {
  Shape shape = broadcast_shapes(batch_of(a), batch_of(b), "matmul");
  shape.push_back(a.dim(-2));
  shape.push_back(b.dim(-1));
  return shape;
}

void launch_matmul(const Tensor& a, const Tensor& b, const Tensor& out) {
  launch(Matmul{.a = a, .b = b, .out = out, .workspace = product_workspace(out.device(), out.dim(-2), out.dim(-1), a.dim(-1))});
}

// a b summed to `shape`, where a batch dim was broadcast: such a sum is f32 to its end.
Tensor product(const Tensor& a, const Tensor& b, const Shape& shape) {
  const Shape full = product_shape(a, b);
  const bool is_wide_sum = full != shape && is_16_bit(a.dtype());
  const Tensor out = empty(full, is_wide_sum ? DType::f32 : a.dtype(), a.device());
  launch_matmul(a, b, out);
  const Tensor sum = sum_to(out, shape);
  if (!is_wide_sum) return sum;
  const Tensor rounded = empty(shape, a.dtype(), a.device());
  launch(Convert{.x = sum, .out = rounded});
  return rounded;
}

struct MatmulOp {
  static constexpr std::string_view name = "matmul";
  struct Saved {
    SavedTensor a, b;
    Shape a_shape, b_shape;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& a, const Tensor& b) {
    check(a.num_dims() >= 2 && b.num_dims() >= 2, name, ": expected at least 2 dims, got ", a.shape(), " and ", b.shape());
    check(a.dim(-1) == b.dim(-2), name, ": columns of a and rows of b must agree, got ", a.shape(), " and ", b.shape());
    const Tensor out = op_output(product_shape(a, b), a.dtype(), a.device());
    if (b.num_dims() == 2 && a.num_dims() > 2) {
      launch_matmul(as_rows(a), readable(b), as_rows(out));
    } else {
      launch_matmul(readable(a), readable(b), out);
    }
    return {out, {.a = needs[1] ? a : Tensor(), .b = needs[0] ? b : Tensor(), .a_shape = a.shape(), .b_shape = b.shape()}};
  }

  static Grads<2> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    const bool is_flat = saved.b_shape.size() == 2;
    Tensor grad_a, grad_b;
    if (needs[1]) {
      const Tensor a = saved.a.get();
      grad_b = is_flat ? rows_product(as_rows(a), as_rows(grad_out)) : product(transposed(readable(a)), grad_out, saved.b_shape);
    }
    if (needs[0]) {
      const Tensor b = transposed(readable(saved.b.get()));
      if (is_flat) grad_a = view::reshape(product(as_rows(grad_out), b, {grad_rows(grad_out), b.dim(-1)}), saved.a_shape);
      else grad_a = product(grad_out, b, saved.a_shape);
    }
    return {grad_a, grad_b};
  }

 private:
  static std::int64_t grad_rows(const Tensor& grad_out) {
    std::int64_t rows = 1;
    for (int i = 0; i + 1 < grad_out.num_dims(); ++i) rows *= grad_out.dim(i);
    return rows;
  }

  // aᵀ g over the long dim of rows: what a linear layer's weight gradient is.
  static Tensor rows_product(const Tensor& a, const Tensor& grad) {
    const Tensor out = empty({a.dim(1), grad.dim(1)}, a.dtype(), a.device());
    Tensor scratch;
    if (const std::int64_t size = LinearBackwardWeight::scratch_size(a.device().target(), a.dim(0), a.dim(1), grad.dim(1), a.dtype())) {
      const KindScope kind(MemoryKind::workspace);
      scratch = empty({size}, accumulator_dtype(a.dtype()), a.device());
    }
    launch(LinearBackwardWeight{.grad_out = a, .x = grad, .out = out, .grad_bias = {}, .scratch = scratch,
                                .workspace = product_workspace(a.device(), a.dim(1), grad.dim(1), a.dim(0))});
    return out;
  }
};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) { return apply<MatmulOp>(a, b); }

}  // namespace refrain
