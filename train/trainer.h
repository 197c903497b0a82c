// The training loop: windows of micro-batches, one optimizer step each. What it does is a function of the loader's
// position, the step and the seed, so a resumed run repeats the unbroken one bit by bit.
#pragma once

#include <refrain/data/loader.h>
#include <refrain/nn/module.h>
#include <refrain/optim/optimizer.h>
#include <refrain/optim/schedule.h>

#include <functional>
#include <optional>

namespace refrain {

struct BatchLoss {
  Tensor loss;               // sum of the targets' losses times the scale asked for: a scalar
  std::int64_t correct = 0;  // targets predicted right
};
// Runs the model on a micro-batch.
using LossFunction = std::function<BatchLoss(const Batch& batch, double scale)>;

struct TrainerOptions {
  std::int64_t accumulate = 1;  // micro-batches a step; a window ends with its epoch
  double clip_norm = 0;         // 0: none
  std::uint64_t seed = 0;       // of the model's random numbers
};

struct StepResult {
  double loss = 0;              // mean over the window's targets
  double lr = 0, grad_norm = 0; // the norm before clipping
  std::int64_t samples = 0, targets = 0, correct = 0;
};

class Trainer {
 public:
  // Throws InvalidArgument for options out of range.
  Trainer(Loader& loader, Optimizer& optimizer, const Schedule& schedule, LossFunction loss, const TrainerOptions& options = {});

  // One optimizer step on the next window; nothing at the end of an epoch (the call after that begins the next).
  // Every target of the window has the same weight, however the window is cut into micro-batches. Throws NonFinite,
  // before parameters change, when the loss or the gradients' norm is not finite.
  std::optional<StepResult> step();

  std::int64_t num_steps() const { return num_steps_; }
  void set_num_steps(std::int64_t steps) { num_steps_ = steps; }
  std::int64_t steps_per_epoch() const;

 private:
  Loader& loader_;
  Optimizer& optimizer_;
  Schedule schedule_;
  LossFunction loss_;
  TrainerOptions options_;
  std::vector<Tensor> parameters_;
  std::int64_t num_steps_ = 0;
};

struct Evaluation {
  double loss = 0, accuracy = 0;  // means over all targets
  std::int64_t samples = 0, targets = 0;
};

// One epoch of the loader without gradients, in evaluation mode; the module's mode is put back.
Evaluation evaluate(Module& model, Loader& loader, const LossFunction& loss);

}  // namespace refrain
