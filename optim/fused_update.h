// An update that takes place inside backward: a parameter is updated, and its gradient freed, as soon as the gradient is
// final and nothing on the tape reads the parameter any more. Then gradients take the bytes of a few parameters instead
// of all. For any optimizer; weights are bitwise those of Optimizer::step().
//
//   FusedUpdate update(optimizer, lr);
//   backward(loss, update.options());
//   const double norm = update.finish();
//
// What needs all gradients before the first update does not go together with it: clipping by the global norm, and leaving
// out a step whose gradients overflow.
#pragma once

#include <refrain/autograd/tape.h>
#include <refrain/optim/optimizer.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace refrain {

class FusedUpdate {
 public:
  // Changes nothing yet; the optimizer must outlive this. With `stops_at_non_finite` backward throws NonFinite at the
  // first gradient that is not finite, before its own update, naming the parameter; those updated before it stay updated.
  FusedUpdate(Optimizer& optimizer, double lr, double grad_scale = 1, bool stops_at_non_finite = true);
  FusedUpdate(const FusedUpdate&) = delete;
  FusedUpdate& operator=(const FusedUpdate&) = delete;

  // Begins the step; for its last backward. grad_out may be added. Throws InvalidArgument as Optimizer::step() does.
  BackwardOptions options();
  // Ends the step: updates what had to wait for the end of backward. Returns the norm of the gradients times grad_scale,
  // the sums of squares added in the parameters' order (0 on a plan device).
  double finish();

  // Index of the first parameter in the order of backward whose gradient was not finite; -1: none.
  std::int64_t first_non_finite() const { return first_non_finite_; }

 private:
  void take(const Tensor& parameter);
  void update_ready();

  Optimizer& optimizer_;
  double lr_, grad_scale_;
  bool stops_at_non_finite_;
  std::vector<Tensor> parameters_;
  std::vector<double> squares_;
  std::unordered_map<const AutogradSlot*, std::int64_t> index_of_;  // parameters may share a storage, never a slot
  std::vector<std::int64_t> waiting_;  // their gradients are final, in that order
  std::int64_t first_non_finite_ = -1;
};

}  // namespace refrain
