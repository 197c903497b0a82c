// LocalSGD (Stich 2019; McMahan et al. 2017): every rank trains by itself, and every H optimizer steps the parameters are
// averaged over the ranks. Messages are 1/H of data parallel's. Two lines to add to a loop:
//
//   LocalSgdScope averaging(group, model.state_dict(), optimizer, {.steps = 8});
//   while (…) {
//     backward(loss); optimizer.step(lr); optimizer.zero_grad();
//     averaging.step();
//   }                                   // what is left over is averaged when the scope ends, unless by an exception
//
// Averages are taken in place, a bucket at a time; of 16-bit parameters with a master copy it is the master that is averaged.
// Steps are counted whether or not an update was applied, so ranks that leave out a step still meet.
//
// With an outer optimizer (DiLoCo, Douillard et al. 2023) the change of the average since the last one is a gradient, on
// which SGD with Nesterov's momentum takes one step.
#pragma once

#include <refrain/core/named_tensor.h>
#include <refrain/dist/process_group.h>
#include <refrain/optim/optimizer.h>

#include <cstdint>
#include <exception>
#include <span>
#include <vector>

namespace refrain {

// What becomes of moments and momentum when parameters are averaged.
enum class StatePolicy : std::uint8_t {
  keep,     // every rank goes on with its own
  average,  // they are averaged as well
  reset,    // they begin anew from zero
};

struct LocalSgdOptions {
  std::int64_t steps = 8;  // H
  std::int64_t bucket_bytes = std::int64_t{25} << 20;
  StatePolicy state = StatePolicy::keep;
  // Of averages of 16-bit parameters without masters. Stochastic: averaged in f32 and rounded with the same random numbers on
  // all ranks, a function of seed, number of the averaging, name and element.
  Rounding rounding = Rounding::nearest;
  std::uint64_t seed = 0;
  // The outer step; lr 1 without momentum is the average itself and keeps no state. For f32 and f64 parameters.
  double outer_lr = 1, outer_momentum = 0;
};

class LocalSgd {
 public:
  // Gives every rank rank 0's values of `state`, parameters and buffers, named as the optimizer names them, and refreshes
  // masters. Group and optimizer must outlive this. Throws InvalidArgument for options out of range.
  LocalSgd(ProcessGroup& group, std::vector<NamedTensor> state, Optimizer& optimizer, const LocalSgdOptions& options = {});
  LocalSgd(const LocalSgd&) = delete;
  LocalSgd& operator=(const LocalSgd&) = delete;

  // After each optimizer step, attempted or applied: averages when H have been made. Returns whether it did.
  bool step();
  // Averages now what is not averaged yet; the count begins anew.
  void finish();

  std::int64_t num_steps_since() const { return num_since_; }
  std::int64_t num_averagings() const { return num_averagings_; }

  // num_since and num_averagings; the outer optimizer's momentum and where its next step begins.
  OptimizerState state_dict() const;
  // Throws InvalidArgument naming what is missing. Tensors must be this one's own, or of their shapes. An empty state begins
  // anew, from the parameters as they are.
  void load_state(const OptimizerState& state);

 private:
  struct Item {
    Tensor tensor;     // that is averaged
    Tensor parameter;  // undefined, or the 16-bit parameter that is this master rounded
    std::string name;
    bool is_wide = false;  // averaged in f32, rounded stochastically
    std::int64_t first_element = 0;  // of the parameter that this is a piece of
  };
  struct Outer {
    Tensor parameter, anchor, momentum;
    std::string name;
  };
  void average();
  void reduce_buckets();
  void reset_optimizer_state();
  void step_outer();

  ProcessGroup& group_;
  Optimizer& optimizer_;
  LocalSgdOptions options_;
  std::vector<Item> items_;
  std::vector<Outer> outer_;
  std::int64_t num_since_ = 0, num_averagings_ = 0;
};

// Averages once more when it ends, unless by an exception.
class LocalSgdScope : public LocalSgd {
 public:
  using LocalSgd::LocalSgd;
  ~LocalSgdScope() noexcept(false);

 private:
  int num_exceptions_ = std::uncaught_exceptions();  // under way when the scope began
};

}  // namespace refrain
