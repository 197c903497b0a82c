// What all optimizers share: groups, steps, state by name. A step reads gradients where autograd keeps them and changes
// parameters in place; parameters without a gradient are left as they are, without decay.
#pragma once

#include <refrain/optim/parameter_group.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace refrain {

// Everything a step depends on besides parameters and gradients.
struct OptimizerState {
  std::vector<NamedTensor> tensors;       // `parameter name`.`state`, such as blocks.0.fc1.weight.mean
  std::map<std::string, double> scalars;  // num_steps; optimizers may add their own
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient. `grad_scale` multiplies the gradients on their way in: the factor of
  // clipping (clip_grad.h), or the inverse of a loss scale. Throws InvalidArgument unless both are finite and lr >= 0.
  void step(double lr, double grad_scale = 1);

  // Drops the gradients.
  void zero_grad();

  // Calls of step() so far.
  std::int64_t num_steps() const { return num_steps_; }
  std::vector<Tensor> parameters() const;

  // The state's tensors are the optimizer's own, not copies: a file may be read straight into them.
  OptimizerState state_dict() const;
  // Takes over a state of the same parameters. Throws InvalidArgument naming what is missing, unexpected or of another
  // shape or dtype, before anything is changed.
  void load_state(const OptimizerState& state);

 protected:
  struct Slot {
    Tensor parameter;
    std::string name;
    double weight_decay, lr_scale;
    std::vector<Tensor> state;  // one tensor of the parameter's shape for each of state_names
    std::int64_t num_steps = 0; // updates of this parameter, which may lack a gradient in some steps
  };

  // `state_names`: what is kept for each parameter, zeros at first, of kind optimizer_state. Parameters that want no
  // gradient (frozen) are left out and get no state. Throws InvalidArgument for a parameter that comes twice or is not
  // contiguous.
  Optimizer(std::vector<ParameterGroup> groups, std::vector<std::string> state_names);

  // One update; slot.num_steps counts it already.
  virtual void update(const Slot& slot, const Tensor& grad, double lr, double grad_scale) = 0;

 private:
  std::vector<std::string> state_names_;
  std::vector<Slot> slots_;
  std::int64_t num_steps_ = 0;
};

}  // namespace refrain
