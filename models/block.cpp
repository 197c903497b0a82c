#include <refrain/models/block.h>

#include <refrain/autograd/ops/dropout.h>
#include <refrain/autograd/ops/elementwise.h>

namespace refrain {

Block::Block(const BlockOptions& options) {
  norm1 = add<LayerNorm>("norm1", options.width, options.eps);
  attention = add<MultiHeadAttention>("attention", options.width, options.num_heads, options.attention);
  norm2 = add<LayerNorm>("norm2", options.width, options.eps);
  mlp = add<Mlp>("mlp", options.width, options.hidden, options.mlp);
  dropout = add<Dropout>("dropout", options.dropout);
  stochastic_depth = add<StochasticDepth>("stochastic_depth", options.stochastic_depth);
}

Tensor Block::add_branch(const Tensor& branch, const Tensor& hidden) const {
  if (!is_training() || stochastic_depth->p() == 0) return dropout_add(branch, hidden, is_training() ? dropout->p() : 0);
  return hidden + (*stochastic_depth)((*dropout)(branch));
}

Tensor Block::forward(const Tensor& hidden, const SideInputs& side) {
  const Tensor x = add_branch((*attention)((*norm1)(hidden), side.key_mask), hidden);
  return add_branch((*mlp)((*norm2)(x)), x);
}

}  // namespace refrain
