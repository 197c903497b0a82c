// The last stage of a chain in two halves: features, and the projection that makes logits of them. A loss that never has
// all logits at once (autograd/ops/linear_cross_entropy.h) takes the features and does the projection itself.
#pragma once

#include <refrain/models/chain_model.h>

#include <memory>
#include <vector>

namespace refrain {

// Letters: D width, V classes or tokens.
class HeadStage : public StageModule {
 public:
  struct Projection {
    Tensor weight;  // [V, D]
    Tensor bias;    // [V], undefined without bias
  };
  // Hidden state → [..., D]
  virtual Tensor features(const Tensor& hidden, const SideInputs& side) = 0;
  virtual Projection projection() const = 0;
  // [..., D] → linear(features, weight, bias), [..., V]
  virtual Tensor logits(const Tensor& features) const;
  Tensor forward(const Tensor& hidden, const SideInputs& side) final { return logits(features(hidden, side)); }
  bool is_block() const final { return false; }
};

// The model's last stage. Throws InvalidArgument when that is no HeadStage.
std::shared_ptr<HeadStage> head_of(const ChainModel& model);

// The model's stages, of which the last stops at the features of the head. Policies make the same parts of them.
std::vector<std::shared_ptr<Stage>> stages_to_features(const ChainModel& model);

}  // namespace refrain
