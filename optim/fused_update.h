// An update that takes place inside backward: a parameter is updated, and its gradient freed, as soon as the gradient is
// final and nothing on the tape reads the parameter any more. Then gradients take the bytes of a few parameters instead
// of all. For any optimizer; weights are bitwise those of Optimizer::step().
//
//   FusedUpdate update(optimizer, lr);
//   backward(loss, update.options());
//   const double norm = update.finish();
//
// What needs all gradients before the first update, clipping by the global norm and leaving out a step whose gradients
// overflow, takes two backward passes over the same forward: GradMeasure in the first, which retains, FusedUpdate in the second.
#pragma once

#include <refrain/autograd/tape.h>
#include <refrain/optim/clip_grad.h>
#include <refrain/optim/optimizer.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace refrain {

// The norm of an optimizer's gradients, measured inside backward: each gradient is looked at when it is final. A GPU is not
// waited for then: it keeps the sums, and an element more that becomes NaN with the first gradient that is not finite.
class GradMeasure {
 public:
  explicit GradMeasure(const Optimizer& optimizer);
  GradMeasure(const GradMeasure&) = delete;
  GradMeasure& operator=(const GradMeasure&) = delete;

  const std::vector<Tensor>& parameters() const { return parameters_; }
  // For a backward that only measures: drops each gradient then.
  BackwardOptions options();
  // Looks at a parameter's final gradient. Returns the parameter's index.
  std::int64_t look_at(const Tensor& parameter);
  // Whether what was seen is known only after read().
  bool is_deferred() const { return is_deferred_; }
  void read();
  double square(std::int64_t index) const { return squares_[std::size_t(index)]; }
  // Where measuring is deferred, a guard of updates (kernels/update/update.h): NaN from the first gradient on that is not finite.
  Tensor guard();
  // Of the gradients seen, bitwise that of grad_norm() (clip_grad.h); 0 on a plan device.
  GradNorm norm();

 private:
  const Tensor& sums();

  std::vector<Tensor> parameters_;
  std::vector<double> squares_;
  bool is_deferred_;
  Tensor sums_;  // f64 [parameters + 1], the last one the guard; until it is read
  std::unordered_map<const AutogradSlot*, std::int64_t> index_of_;  // parameters may share a storage, never a slot
};

class FusedUpdate {
 public:
  // Changes nothing yet; the optimizer must outlive this. With `stops_at_non_finite` backward throws NonFinite at the
  // first gradient that is not finite, before its own update, naming the parameter; those updated before it stay updated.
  // On a GPU finish() throws it, with the same parameters updated, so that nothing waits during backward.
  FusedUpdate(Optimizer& optimizer, double lr, double grad_scale = 1, bool stops_at_non_finite = true);
  FusedUpdate(const FusedUpdate&) = delete;
  FusedUpdate& operator=(const FusedUpdate&) = delete;

  // Begins the step; for its last backward. grad_out may be added. Throws InvalidArgument as Optimizer::step() does.
  BackwardOptions options();
  // Ends the step: updates what had to wait for the end of backward. Returns the norm of the gradients times grad_scale,
  // the sums of squares added in the parameters' order (0 on a plan device).
  double finish();

  // Index of the first parameter in the order of backward whose gradient was not finite; -1: none. On a GPU after finish().
  std::int64_t first_non_finite() const { return first_non_finite_; }

 private:
  // Where a parameter's gradient became final, and how many updates had begun before.
  struct Look {
    std::int64_t index;
    std::string_view op;
    const ModulePath* module;
    std::size_t num_updates;
  };
  void take(const Tensor& parameter);
  void judge(const Look& look);
  void update_ready();

  Optimizer& optimizer_;
  double lr_, grad_scale_;
  bool stops_at_non_finite_;
  GradMeasure measure_;
  std::vector<std::int64_t> waiting_;  // their gradients are final, in that order
  std::vector<Look> looks_;            // those that are not judged yet
  std::vector<std::int64_t> updates_;  // in their order
  std::int64_t first_non_finite_ = -1;
};

}  // namespace refrain
