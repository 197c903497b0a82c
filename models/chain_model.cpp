#include <refrain/models/chain_model.h>

namespace refrain {

Tensor ChainModel::operator()(const Tensor& input, const CheckpointPolicy& policy, const SideInputs& side) const {
  const ModuleScope scope = enter();
  return run_chain(stages_, input, side, policy);
}

}  // namespace refrain
