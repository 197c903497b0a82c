#include <refrain/train/trainer.h>

#include <refrain/autograd/finite_watch.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/optim/clip_grad.h>

#include <charconv>
#include <cmath>

namespace refrain {

namespace {

constexpr int kMaxSkips = 20;

// Shortest text that is this very number.
std::string exactly(double value) {
  if (std::isnan(value)) return "nan";
  char buffer[40];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

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
    : loader_(loader), optimizer_(optimizer), schedule_(schedule), loss_(std::move(loss)), options_(options), parameters_(optimizer.parameters()),
      scaler_(options.loss_scale) {
  check(options_.accumulate >= 1, "trainer: expected to accumulate at least 1 micro-batch, got ", options_.accumulate);
  check(options_.clip_norm >= 0, "trainer: expected a clip norm of at least 0, got ", options_.clip_norm);
  if (!options_.fused_update) return;
  constexpr const char* kReason = " needs all gradients before the first update, which a fused update does not keep";
  check(options_.clip_norm == 0, "trainer: clipping by the global norm", kReason);
  check(options_.loss_scale.mode != ScalerMode::dynamic, "trainer: a dynamic loss scale", kReason);
  check(options_.non_finite != NonFinitePolicy::skip, "trainer: skipping steps that are not finite", kReason);
}

std::int64_t Trainer::steps_per_epoch() const { return (loader_.num_batches() + options_.accumulate - 1) / options_.accumulate; }

void Trainer::run_window(const Loader::Upcoming& window, StepResult& result, FusedUpdate* fused) {
  optimizer_.zero_grad();  // of a window that an exception broke off
  const double scale = window.targets > 0 ? 1.0 / double(window.targets) : 0;
  std::int64_t samples_before = 0;
  for (std::int64_t i = 0; i < window.batches; ++i) {
    const std::optional<Batch> batch = loader_.next();
    random_state().seed = options_.seed;
    set_random_position(std::uint32_t(num_steps_), samples_before);
    const BatchLoss loss = loss_(*batch, scale);
    result.loss += value_of(loss.loss);
    result.correct += loss.correct;
    const bool is_last = i + 1 == window.batches;
    BackwardOptions backward_options;
    if (is_last && fused != nullptr && (options_.non_finite == NonFinitePolicy::report || std::isfinite(result.loss)))
      backward_options = fused->options();
    backward_options.is_last = is_last;
    if (scaler_.scale() != 1) backward_options.grad_out = full(loss.loss.shape(), scaler_.scale(), loss.loss.dtype(), loss.loss.device());
    backward(loss.loss, backward_options);
    samples_before += batch->size;
  }
}

std::string Trainer::first_non_finite(const LoaderState& start, const Loader::Upcoming& window) {
  loader_.set_state(start);
  FiniteWatch watch;
  StepResult ignored;
  run_window(window, ignored);
  return watch.finding() ? to_text(*watch.finding()) : "no single op is to blame";
}

void Trainer::handle_non_finite(const LoaderState& start, const Loader::Upcoming& window, StepResult& result, const std::string& what) {
  const auto stop = [&](const std::string& reason) {
    const std::string first = first_non_finite(start, window);
    optimizer_.zero_grad();
    loader_.set_state(skips_ ? skips_->loader : start);
    if (skips_) scaler_ = skips_->scaler;
    fail<NonFinite>(what, reason, "; first: ", first);
  };
  const bool can_back_off = scaler_.options().mode == ScalerMode::dynamic && scaler_.scale() > scaler_.options().min_scale;
  const bool is_overflow = std::isfinite(result.loss) && can_back_off;
  if (!is_overflow && options_.non_finite == NonFinitePolicy::stop) stop("");
  if (!is_overflow && options_.non_finite == NonFinitePolicy::report) {
    result.note = concat(what, "; first: ", first_non_finite(start, window));
    return;
  }
  if (!skips_) skips_ = Skips{start, scaler_};
  scaler_.update(false);
  if (scaler_.num_skipped_in_a_row_at_lowest_scale() >= kMaxSkips)
    stop(concat(", the ", kMaxSkips, "th skip in a row at loss scale ", exactly(result.loss_scale)));
  result.is_applied = false;
  result.note = concat(what, ": skipped");
  if (can_back_off) result.note += concat(", loss scale now ", exactly(scaler_.scale()));
  optimizer_.zero_grad();
}

std::optional<StepResult> Trainer::step() {
  const LoaderState start = loader_.state();
  const Loader::Upcoming window = loader_.upcoming(options_.accumulate);
  if (window.batches == 0) {
    optimizer_.zero_grad();
    loader_.next();
    return std::nullopt;
  }
  StepResult result{.lr = schedule_.lr(num_steps_), .samples = window.samples, .targets = window.targets, .loss_scale = scaler_.scale()};
  if (options_.fused_update) {
    step_fused(start, window, result);
    finish_step(result);
    return result;
  }
  run_window(window, result);
  const GradScaler::Unscaled gradients = scaler_.check(parameters_);
  result.grad_norm = gradients.grad_norm;
  if (!std::isfinite(result.loss)) {
    handle_non_finite(start, window, result, concat("the loss of step ", num_steps_ + 1, " is ", exactly(result.loss)));
  } else if (!gradients.is_finite) {
    handle_non_finite(start, window, result, concat("step ", num_steps_ + 1, ": the gradient of parameter '",
                                                    optimizer_.parameter_name(gradients.first_non_finite), "' is not finite"));
  } else {
    scaler_.update(true);
    skips_.reset();
  }
  if (!result.is_applied) return result;
  const bool clips = options_.clip_norm > 0 && std::isfinite(result.grad_norm);
  optimizer_.step(result.lr, (clips ? clip_factor(result.grad_norm, options_.clip_norm) : 1) / result.loss_scale);
  finish_step(result);
  return result;
}

void Trainer::step_fused(const LoaderState& start, const Loader::Upcoming& window, StepResult& result) {
  const bool stops = options_.non_finite == NonFinitePolicy::stop;
  FusedUpdate fused(optimizer_, result.lr, 1 / result.loss_scale, stops);
  try {
    run_window(window, result, &fused);
  } catch (const NonFinite& error) {
    optimizer_.zero_grad();
    fail<NonFinite>("step ", num_steps_ + 1, ": ", error.what());
  }
  if (!std::isfinite(result.loss)) {
    const std::string what = concat("the loss of step ", num_steps_ + 1, " is ", exactly(result.loss));
    if (stops) handle_non_finite(start, window, result, what);  // throws; no update has begun
    result.note = what;
  } else if (fused.first_non_finite() >= 0) {
    result.note = concat("step ", num_steps_ + 1, ": the gradient of parameter '", optimizer_.parameter_name(fused.first_non_finite()),
                         "' is not finite");
  }
  result.grad_norm = fused.finish();
}

void Trainer::finish_step(StepResult& result) {
  optimizer_.zero_grad();
  if (const std::int64_t index = optimizer_.first_non_finite(); index >= 0) {
    const std::string what = concat("the update of step ", num_steps_ + 1, " made parameter '", optimizer_.parameter_name(index),
                                    "' infinite or NaN, with finite gradients of norm ", exactly(result.grad_norm), " and lr ", exactly(result.lr));
    check<NonFinite>(options_.non_finite == NonFinitePolicy::report, what);
    if (result.note.empty()) result.note = what;
  }
  if (optimizer_.num_updated_elements() > 0)
    result.lost_updates_share = double(optimizer_.num_lost_updates()) / double(optimizer_.num_updated_elements());
  ++num_steps_;
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
