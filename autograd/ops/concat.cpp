#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/common_dtype.h>
#include <refrain/autograd/ops/concat.h>
#include <refrain/core/view.h>
#include <refrain/kernels/concat/concat.h>
#include <refrain/kernels/convert/convert.h>

namespace refrain {

namespace {

struct ConcatOp {
  static constexpr std::string_view name = "concat";
  struct Part {
    std::int64_t extent;
    DType dtype;
  };
  struct Saved {
    std::vector<Part> parts;
    int dim = 0;
  };

  static std::pair<Tensor, Saved> forward(Needs, std::span<const Tensor> inputs, int dim) {
    check(!inputs.empty(), name, ": no inputs");
    Shape shape = inputs[0].shape();
    const int d = normalize_dim(dim, shape.size(), name);
    shape[d] = 0;
    Saved saved{{}, d};
    DType dtype = inputs[0].dtype();
    std::vector<In> arguments;
    for (const Tensor& input : inputs) {
      check(input.num_dims() == shape.size(), name, ": every input must have ", shape.size(), " dims, got ", input.shape());
      arguments.emplace_back(input);
      for (const Part& part : saved.parts) dtype = common_dtype(common_dtype(part.dtype, input.dtype(), name), dtype, name);
      saved.parts.push_back({input.shape()[d], input.dtype()});
      shape[d] += input.shape()[d];
    }
    const Tensor out = op_output(shape, dtype, inputs[0].device());
    launch(Concat{.inputs = arguments, .dim = d, .out = out});
    return {out, std::move(saved)};
  }

  static std::vector<Tensor> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    std::vector<Tensor> grads;
    std::int64_t at = 0;
    for (const Part& part : saved.parts) {
      Tensor grad;
      if (needs[grads.size()]) grad = view::slice(grad_out, saved.dim, at, at + part.extent);
      if (grad.defined() && grad.dtype() != part.dtype) {
        const Tensor narrow = empty(grad.shape(), part.dtype, grad.device());
        launch(Convert{.x = grad, .out = narrow});
        grad = narrow;
      }
      grads.push_back(grad);
      at += part.extent;
    }
    return grads;
  }
};

}  // namespace

Tensor concat_tensors(std::span<const Tensor> inputs, int dim) { return apply<ConcatOp>(inputs, dim); }

}  // namespace refrain
