#include <refrain/autograd/op.h>
#include <refrain/autograd/ops/embedding.h>
#include <refrain/kernels/embedding/embedding.h>

namespace refrain {

namespace {

struct Embedding {
  static constexpr std::string_view name = "embedding";
  struct Saved {
    SavedTensor indices;
    Shape weight_shape;
    DType dtype = DType::f32;
    std::int64_t padding_idx = -1;
  };

  static std::pair<Tensor, Saved> forward(Needs needs, const Tensor& indices, const Tensor& weight, std::optional<std::int64_t> padding_idx) {
    check(weight.num_dims() == 2, name, ": weight must be [V, D], got ", weight.shape());
    check(!padding_idx || (*padding_idx >= 0 && *padding_idx < weight.dim(0)), name, ": padding_idx must be 0 … ", weight.dim(0) - 1, ", got ",
          padding_idx.value_or(0));
    Shape shape = indices.shape();
    shape.push_back(weight.dim(1));
    const Tensor out = op_output(shape, weight.dtype(), weight.device());
    launch(EmbeddingForward{.indices = contiguous_values(indices), .weight = contiguous_values(weight), .out = out});
    return {out, {needs[1] ? SavedTensor(indices) : SavedTensor(), weight.shape(), weight.dtype(), padding_idx.value_or(-1)}};
  }

  static Grads<2> backward(const Saved& saved, const Tensor& grad_out, Needs) {
    const Tensor grad_weight = empty(saved.weight_shape, saved.dtype, grad_out.device());
    const Tensor indices = contiguous_values(saved.indices.get());
    Tensor order;
    const Device& device = grad_out.device();
    if (const std::int64_t size = EmbeddingBackward::num_order(device.target(), indices.numel(), saved.weight_shape[0], saved.dtype)) {
      KindScope kind(MemoryKind::workspace);
      order = empty({size}, DType::i64, device);
    }
    launch(EmbeddingBackward{.grad_out = grad_out, .indices = indices, .padding_idx = saved.padding_idx, .out = grad_weight, .order = order});
    return {Tensor(), grad_weight};
  }
};

}  // namespace

Tensor embedding(const Tensor& indices, const Tensor& weight, std::optional<std::int64_t> padding_idx) {
  return apply<Embedding>(indices, weight, padding_idx);
}

}  // namespace refrain
