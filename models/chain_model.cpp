#include <refrain/models/chain_model.h>

namespace refrain {

Tensor ChainModel::operator()(const Tensor& input, const CheckpointPolicy& policy, const SideInputs& side) const {
  const ModuleScope scope = enter();
  return run_chain(stages_, input, side, policy);
}

std::vector<std::vector<NamedTensor>> stage_parameters(const ChainModel& model) {
  std::vector<std::vector<NamedTensor>> stages;
  for (const std::shared_ptr<Stage>& stage : model.stages()) {
    const auto* module = dynamic_cast<const Module*>(stage.get());
    check(module != nullptr, "stage_parameters: stage '", stage->name(), "' is no module: which parameters it reads is not known");
    std::vector<NamedTensor>& parameters = stages.emplace_back(module->named_parameters());
    for (NamedTensor& parameter : parameters) parameter.name = concat(stage->name(), ".", parameter.name);
  }
  return stages;
}

}  // namespace refrain
