#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/concat.h>
#include <refrain/core/view.h>
#include <refrain/kernels/concat/concat.h>

namespace refrain {

namespace {

struct ConcatOp {
  static constexpr std::string_view name = "concat";
  struct Saved {
    std::vector<std::int64_t> extents;
    int dim = 0;
  };

  static std::pair<Tensor, Saved> forward(Needs, std::span<const Tensor> inputs, int dim) {
    check(!inputs.empty(), name, ": no inputs");
    Shape shape = inputs[0].shape();
    const int d = normalize_dim(dim, shape.size(), name);
    shape[d] = 0;
    Saved saved{{}, d};
    std::vector<In> arguments;
    for (const Tensor& input : inputs) {
      check(input.num_dims() == shape.size(), name, ": every input must have ", shape.size(), " dims, got ", input.shape());
      arguments.emplace_back(input);
      saved.extents.push_back(input.shape()[d]);
      shape[d] += input.shape()[d];
    }
    const Tensor out = op_output(shape, inputs[0].dtype(), inputs[0].device());
    launch(Concat{.inputs = arguments, .dim = d, .out = out});
    return {out, std::move(saved)};
  }

  static std::vector<Tensor> backward(const Saved& saved, const Tensor& grad_out, Needs needs) {
    std::vector<Tensor> grads;
    std::int64_t at = 0;
    for (std::size_t i = 0; i < saved.extents.size(); ++i) {
      grads.push_back(needs[i] ? view::slice(grad_out, saved.dim, at, at + saved.extents[i]) : Tensor());
      at += saved.extents[i];
    }
    return grads;
  }
};

}  // namespace

Tensor concat_tensors(std::span<const Tensor> inputs, int dim) { return apply<ConcatOp>(inputs, dim); }

}  // namespace refrain
