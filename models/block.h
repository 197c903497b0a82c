// The pre-norm transformer block both models are made of:
//   x = x + dropout(attention(norm1(x)));  x = x + dropout(mlp(norm2(x)))
#pragma once

#include <refrain/models/chain_model.h>
#include <refrain/nn/attention.h>
#include <refrain/nn/mlp.h>
#include <refrain/nn/norm.h>

namespace refrain {

struct BlockOptions {
  std::int64_t width = 0;
  std::int64_t hidden = 0;      // of the MLP
  std::int64_t num_heads = 0;
  double eps = 1e-5;            // of the norms
  double dropout = 0;           // of both branches' results
  double stochastic_depth = 0;  // probability of leaving a branch out, per sample
  MultiHeadAttentionOptions attention = {};
  MlpOptions mlp = {};
};

class Block : public StageModule {
 public:
  explicit Block(const BlockOptions& options);
  // [B, T, C] → [B, T, C]
  Tensor forward(const Tensor& hidden, const SideInputs& side) override;

  std::shared_ptr<LayerNorm> norm1, norm2;
  std::shared_ptr<MultiHeadAttention> attention;
  std::shared_ptr<Mlp> mlp;
  std::shared_ptr<Dropout> dropout;
  std::shared_ptr<StochasticDepth> stochastic_depth;

 private:
  // hidden + the branch's result, parts of it left out.
  Tensor add_branch(const Tensor& branch, const Tensor& hidden) const;
};

}  // namespace refrain
