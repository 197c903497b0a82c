#include <refrain/train/trainer.h>

#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/optim/clip_grad.h>

#include <cmath>

namespace refrain {

namespace {

double value_of(const Tensor& loss) { return loss.has_bytes() ? loss.item() : 0; }

// Puts a module's mode back, whatever happens.
class ModeScope {
 public:
  explicit ModeScope(Module& module) : module_(module), was_training_(module.is_training()) { module_.eval(); }
  ~ModeScope() { module_.train(was_training_); }
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  Module& module_;
  bool was_training_;
};

}  // namespace

Trainer::Trainer(Loader& loader, Optimizer& optimizer, const Schedule& schedule, LossFunction loss, const TrainerOptions& options)
    : loader_(loader), optimizer_(optimizer), schedule_(schedule), loss_(std::move(loss)), options_(options), parameters_(optimizer.parameters()) {
  check(options_.accumulate >= 1, "trainer: expected to accumulate at least 1 micro-batch, got ", options_.accumulate);
  check(options_.clip_norm >= 0, "trainer: expected a clip norm of at least 0, got ", options_.clip_norm);
}

std::int64_t Trainer::steps_per_epoch() const { return (loader_.num_batches() + options_.accumulate - 1) / options_.accumulate; }

std::optional<StepResult> Trainer::step() {
  const Loader::Upcoming window = loader_.upcoming(options_.accumulate);
  StepResult result{.lr = schedule_.lr(num_steps_), .samples = window.samples, .targets = window.targets};
  const double scale = window.targets > 0 ? 1.0 / double(window.targets) : 0;
  optimizer_.zero_grad();  // of a window that an exception broke off
  std::int64_t samples_before = 0;
  for (std::int64_t i = 0; i < window.batches; ++i) {
    const std::optional<Batch> batch = loader_.next();
    random_state().seed = options_.seed;
    set_random_position(std::uint32_t(num_steps_), samples_before);
    const BatchLoss loss = loss_(*batch, scale);
    backward(loss.loss, {.is_last = i + 1 == window.batches});
    result.loss += value_of(loss.loss);
    result.correct += loss.correct;
    samples_before += batch->size;
  }
  if (window.batches == 0) {
    loader_.next();
    return std::nullopt;
  }
  check<NonFinite>(std::isfinite(result.loss), "the loss of step ", num_steps_ + 1, " is ", result.loss);
  result.grad_norm = global_grad_norm(parameters_);
  check<NonFinite>(std::isfinite(result.grad_norm), "the gradients' norm of step ", num_steps_ + 1, " is ", result.grad_norm);
  optimizer_.step(result.lr, options_.clip_norm > 0 ? clip_factor(result.grad_norm, options_.clip_norm) : 1);
  optimizer_.zero_grad();
  ++num_steps_;
  return result;
}

Evaluation evaluate(Module& model, Loader& loader, const LossFunction& loss) {
  const NoGradScope no_grad;
  const ModeScope evaluation_mode(model);
  Evaluation total;
  double correct = 0;
  if (loader.state().position != 0) loader.set_state({loader.state().epoch, 0});
  for (Loader::Upcoming next = loader.upcoming(1); next.batches > 0; next = loader.upcoming(1)) {
    const std::optional<Batch> batch = loader.next();
    const BatchLoss batch_loss = loss(*batch, 1);
    total.loss += value_of(batch_loss.loss);
    correct += double(batch_loss.correct);
    total.samples += next.samples;
    total.targets += next.targets;
  }
  loader.next();
  const double count = double(total.targets > 0 ? total.targets : 1);
  total.loss /= count;
  total.accuracy = correct / count;
  return total;
}

}  // namespace refrain
