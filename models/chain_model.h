// A model as a chain of stages – embed, blocks…, head – run under a checkpoint policy. Policies, schedules and
// sharding deal with the chain and need not know which model it is.
#pragma once

#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/stage.h>
#include <refrain/nn/module.h>

#include <memory>
#include <vector>

namespace refrain {

// A stage that is a module too. run_chain() opens its module scope; forward() need not.
class StageModule : public Module, public Stage {
 public:
  std::string_view name() const override { return Module::name(); }
};

class ChainModel : public Module {
 public:
  // Images or tokens → logits; shapes as the model says.
  Tensor operator()(const Tensor& input, const CheckpointPolicy& policy = {}, const SideInputs& side = {}) const;
  const std::vector<std::shared_ptr<Stage>>& stages() const { return stages_; }

 protected:
  // Adds the next stage, a module of this model.
  template <std::derived_from<StageModule> S, class... Arguments>
  std::shared_ptr<S> add_stage(std::string_view stage_name, Arguments&&... arguments) {
    auto stage = add<S>(stage_name, std::forward<Arguments>(arguments)...);
    stages_.push_back(stage);
    return stage;
  }

 private:
  std::vector<std::shared_ptr<Stage>> stages_;
};

// The parameters of each stage by their full names; one that several stages read is in each of them. Throws InvalidArgument for a
// stage that is no module, of which that is not known.
std::vector<std::vector<NamedTensor>> stage_parameters(const ChainModel& model);

}  // namespace refrain
