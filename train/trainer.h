// The training loop: windows of micro-batches, one optimizer step each. What it does is a function of the loader's
// position, the step and the seed, so a resumed run repeats the unbroken one bit by bit.
#pragma once

#include <refrain/data/loader.h>
#include <refrain/nn/module.h>
#include <refrain/optim/clip_grad.h>
#include <refrain/optim/fused_update.h>
#include <refrain/optim/grad_scaler.h>
#include <refrain/optim/optimizer.h>
#include <refrain/optim/schedule.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace refrain {

struct BatchLoss {
  Tensor loss;               // sum of the targets' losses times the scale asked for: a scalar
  std::int64_t correct = 0;  // targets predicted right
};
// Runs the model on a micro-batch.
using LossFunction = std::function<BatchLoss(const Batch& batch, double scale)>;
class LayerwiseWindow;
class ModelLoss;
class Strategy;

// What to do when a loss or a gradient is infinite or NaN.
enum class NonFinitePolicy : std::uint8_t {
  stop,    // throw NonFinite, naming the first op and module that made one
  skip,    // leave everything as it is and go on with the next window; 20 in a row at the lowest loss scale stop
  report   // name the op and module, and apply the update all the same
};

// Stopping and reporting run the window once more, to find the op. Gradients that overflow under a dynamic loss scale above
// its lowest value are skipped by every policy: that is how the scale finds its value.
struct TrainerOptions {
  // Update inside backward (optim/fused_update.h), in the window's last micro-batch. What needs all gradients first (clip_norm,
  // a dynamic loss scale, NonFinitePolicy::skip) is refused with it in the ordinary order of accumulation; layer by layer it
  // takes a backward that measures and a second one that updates.
  bool fused_update = false;
  // All micro-batches pass one stage of this model before the next (layerwise.h). Null: one micro-batch after the other passes
  // the whole model. The weights are the same, bit by bit. The loader must hold `accumulate` batches.
  std::shared_ptr<const ModelLoss> layerwise = {};
  std::int64_t accumulate = 1;  // micro-batches a step; a window ends with its epoch
  double clip_norm = 0;         // 0: none
  std::uint64_t seed = 0;       // of the model's random numbers
  GradScalerOptions loss_scale = {.mode = ScalerMode::off};
  NonFinitePolicy non_finite = NonFinitePolicy::stop;
  // What other ranks have to do with it (strategy.h); null: there are none. The loader must hand out this rank's batches, in
  // runs of `accumulate`.
  std::shared_ptr<Strategy> strategy = {};
};

struct StepResult {
  double loss = 0;              // mean over `targets`
  double lr = 0, grad_norm = 0; // the norm of the unscaled gradients before clipping
  std::int64_t samples = 0;     // of all ranks
  std::int64_t targets = 0, correct = 0;  // of the window; under local_sgd of this rank's part of it, which may be empty
  double loss_scale = 1;        // of this step
  double lost_updates_share = 0; // of the elements whose update rounding has swallowed
  // False: skipped; no weight and no optimizer state has changed, and no schedule position either, unless the rank skips alone.
  bool is_applied = true;
  std::string note = {};        // why it was skipped, or what the policy `report` has found
};

class Trainer {
 public:
  // With options.layerwise the loss is that one's own, head included, and `loss` is not called: give the same model's.
  // Throws InvalidArgument for options out of range.
  Trainer(Loader& loader, Optimizer& optimizer, const Schedule& schedule, LossFunction loss, const TrainerOptions& options = {});

  // One optimizer step on the next window; nothing at the end of an epoch (the call after that begins the next).
  // Every target of the window has the same weight, however the window is cut into micro-batches. Throws NonFinite as
  // the policy says, before parameters change, with loader and loss scale back where the window (or the skips before it)
  // began; and, unless the policy is `report`, after an update that made a parameter infinite or NaN.
  std::optional<StepResult> step();

  std::int64_t num_steps() const { return num_steps_; }
  void set_num_steps(std::int64_t steps) { num_steps_ = steps; }
  std::int64_t steps_per_epoch() const;
  GradScaler& scaler() { return scaler_; }

 private:
  // Asked for when all losses of this rank are known, before the last backward, or instead of it where there is no micro-batch.
  using Announcements = std::function<BackwardOptions()>;
  // Forward and backward over the window's micro-batches: gradients, and sums into the result.
  void run_window(const Loader::Upcoming& window, StepResult& result, const Announcements& announcements);
  // Micro-batches that this rank goes through, blank ones included, and the next of them.
  std::int64_t num_batches(const Loader::Upcoming& window) const;
  Batch next_batch(const Loader::Upcoming& window, std::int64_t index);
  // Makes loss and hits those of all ranks, where they decide together.
  void share(const Loader::Upcoming& window, StepResult& result);
  // The step of a rank that has no micro-batch in this window and trains alone: gradients are zero.
  void step_without_batch(StepResult& result);
  void attempt(const LoaderState& start, const Loader::Upcoming& window, StepResult& result);
  // The micro-batches of a window, forward through all stages but the head.
  LayerwiseWindow forward_layerwise(const Loader::Upcoming& window);
  // The whole of a step with a fused update: in one backward, or layer by layer in two.
  void step_fused(const LoaderState& start, const Loader::Upcoming& window, StepResult& result);
  void step_in_two_passes(const LoaderState& start, const Loader::Upcoming& window, StepResult& result);
  // Whether the step is applied, with note, norm and loss scale; throws NonFinite.
  void judge(const LoaderState& start, const Loader::Upcoming& window, StepResult& result, GradNorm gradients);
  // What the update multiplies gradients by.
  double grad_scale(const StepResult& result) const;
  void finish_step(StepResult& result);
  // Decides about a step that is not finite: whether to apply it, with a note. Throws NonFinite.
  void handle_non_finite(const LoaderState& start, const Loader::Upcoming& window, StepResult& result, const std::string& what);
  // Runs the window again under a watch; the gradients are those of the first time.
  std::string first_non_finite(const LoaderState& start, const Loader::Upcoming& window);

  Loader& loader_;
  Optimizer& optimizer_;
  Schedule schedule_;
  LossFunction loss_;
  TrainerOptions options_;
  std::shared_ptr<Strategy> strategy_;
  std::vector<Tensor> parameters_;
  GradScaler scaler_;
  // Where the skips in a row that are going on began: a stop goes back there.
  struct Skips {
    LoaderState loader;
    GradScaler scaler;
  };
  std::optional<Skips> skips_;
  std::int64_t num_steps_ = 0;
};

struct Evaluation {
  double loss = 0, accuracy = 0;  // means over all targets
  std::int64_t samples = 0, targets = 0;
};

// One epoch of the loader without gradients, in evaluation mode; the module's mode is put back. Of several ranks each takes its
// own batches, and all get the result.
Evaluation evaluate(Module& model, Loader& loader, const LossFunction& loss, Strategy* strategy = nullptr);

}  // namespace refrain
