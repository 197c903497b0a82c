// What all optimizers share: groups, steps, state by name. A step reads gradients where autograd keeps them and changes
// parameters in place; parameters without a gradient are left as they are, without decay.
#pragma once

#include <refrain/optim/parameter_group.h>
#include <refrain/optim/update_options.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace refrain {

// Everything a step depends on besides parameters and gradients.
struct OptimizerState {
  std::vector<NamedTensor> tensors;       // `parameter name`.`state`, such as blocks.0.fc1.weight.mean; `master`
  std::map<std::string, double> scalars;  // num_steps; optimizers may add their own
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // Updates every parameter that has a gradient. `grad_scale` multiplies the gradients on their way in: the factor of
  // clipping (clip_grad.h), or the inverse of a loss scale. Throws InvalidArgument unless both are finite in f32 and lr >= 0.
  void step(double lr, double grad_scale = 1);

  // The same in parts, for updates during backward (fused_update.h): begin_step(), update_parameter() for parameters()[index],
  // each at most once and only with a gradient, end_step(). `guard` (kernels/update/update.h) keeps updates back as soon as it is
  // not finite; whoever reads it takes those out of the counts.
  void begin_step(double lr, double grad_scale = 1, const Tensor& guard = {});
  void update_parameter(std::int64_t index, double lr, double grad_scale = 1);
  void discount_update(std::int64_t index);
  void end_step();

  // Drops the gradients.
  void zero_grad();

  // Calls of step() so far.
  std::int64_t num_steps() const { return num_steps_; }
  // Of the last step: elements of parameters that were updated, and how many of those had an update that is not zero and
  // yet kept their value, lost to rounding. Only parameters of 16 bits are looked at for losses; with a master copy it is
  // the master that must move. Both 0 on a plan device's parameters.
  std::int64_t num_updated_elements() const { return num_updated_elements_; }
  std::int64_t num_lost_updates() const { return num_lost_updates_; }
  // Index of the first parameter that the last step left with an infinite or NaN value; -1 when there is none.
  std::int64_t first_non_finite() const { return first_non_finite_; }
  std::vector<Tensor> parameters() const;
  // Name of parameters()[index].
  const std::string& parameter_name(std::int64_t index) const { return slots_.at(std::size_t(index)).name; }

  // Where a parameter begins in the one that it is a piece of; 0 for all others, unknown names included.
  std::int64_t first_element(std::string_view name) const;

  // The state's tensors are the optimizer's own, not copies: a file may be read straight into them.
  OptimizerState state_dict() const;
  // Takes over a state of the same parameters. Throws InvalidArgument naming what is missing, unexpected or of another
  // shape or dtype, before anything is changed.
  void load_state(const OptimizerState& state);
  // Takes the parameters' present values over into their master copies: needed when somebody other than step() has changed
  // parameters (loaded weights, averaged replicas), as the next step would otherwise bring the masters' values back.
  void reset_masters();

 protected:
  struct Slot {
    Tensor parameter;
    std::string name;
    double weight_decay, lr_scale;
    std::int64_t first_element; // of the whole parameter that this is a piece of
    std::vector<Tensor> state;  // one tensor of the parameter's shape for each of state_names
    Tensor master;              // f32; undefined when there is none
    std::int64_t num_steps = 0; // updates of this parameter, which may lack a gradient in some steps
  };

  // `state_names`: what is kept for each parameter, zeros at first, of kind optimizer_state. Parameters that want no
  // gradient (frozen) are left out and get no state. Throws InvalidArgument for a parameter that comes twice or is not
  // contiguous.
  Optimizer(std::vector<ParameterGroup> groups, std::vector<std::string> state_names, const UpdateOptions& options);

  // One update; slot.num_steps counts it already. `grad` has the parameter's dtype and is contiguous.
  virtual void update(const Slot& slot, const Tensor& grad, double lr, double grad_scale) = 0;

  struct Update {
    const Slot& slot;
    Tensor grad;
    double lr;
  };
  // The same for many parameters, in any order: one after the other, unless overridden by what does it in fewer launches.
  virtual void update_all(const std::vector<Update>& updates, double grad_scale);

  // For update(): how the running step rounds this parameter, and where lost updates are counted (undefined: they are not).
  UpdateRounding rounding_of(const Slot& slot) const { return {options_.rounding, update_key(options_.seed, num_steps_, slot.name), slot.first_element}; }
  Tensor lost_counter(const Slot& slot) const;
  Tensor non_finite_counter(const Slot& slot) const;
  // To be passed on to the kernel; may be undefined.
  const Tensor& guard() const { return guard_; }

 private:
  Update begin_update(Slot& slot, const Tensor& grad, double lr);
  std::vector<NamedTensor> state_tensors() const;

  UpdateOptions options_;
  std::vector<std::string> state_names_;
  std::vector<Slot> slots_;
  std::int64_t num_steps_ = 0, num_updated_elements_ = 0, num_lost_updates_ = 0;
  std::int64_t first_non_finite_ = -1;
  Tensor guard_;     // while a step runs
  Tensor counters_;  // i64 [1 + slots], while a step runs: lost updates, and values of each parameter that are not finite
};

}  // namespace refrain
