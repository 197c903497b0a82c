#include <refrain/train/trainer.h>

#include <refrain/autograd/finite_watch.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/tape.h>
#include <refrain/core/memory/layout.h>
#include <refrain/kernels/kernel.h>
#include <refrain/optim/clip_grad.h>
#include <refrain/train/layerwise.h>
#include <refrain/train/strategy.h>

#include <algorithm>
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

auto adder_to(StepResult& result) {
  return [&result](const BatchLoss& loss) {
    result.loss += value_of(loss.loss);
    result.correct += loss.correct;
  };
}

// Micro-batches that allocate the same have one name (core/memory/layout.h): in each window the first makes gradients, the last
// may update, and those between are alike. Windows differ by their last micro-batch, and when they have no others between.
std::string section_of(const Loader::Upcoming& window, std::int64_t index, std::int64_t first_size) {
  const std::int64_t last_size = window.samples - (window.batches - 1) * first_size;
  const char* place = index == 0 ? "first" : index + 1 < window.batches ? "middle" : "last";
  return concat(place, " of ", std::min<std::int64_t>(window.batches, 3), ", samples ", first_size, " and ", last_size);
}

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
    : loader_(loader),
      optimizer_(optimizer),
      schedule_(schedule),
      loss_(std::move(loss)),
      options_(options),
      strategy_(options.strategy ? options.strategy : std::make_shared<Strategy>()),
      parameters_(optimizer.parameters()),
      scaler_(options.loss_scale) {
  check(options_.accumulate >= 1, "trainer: expected to accumulate at least 1 micro-batch, got ", options_.accumulate);
  check(options_.clip_norm >= 0, "trainer: expected a clip norm of at least 0, got ", options_.clip_norm);
  check(loader.world_size() == strategy_->world_size(), "trainer: the loader's world has ", loader.world_size(), " ranks, the strategy's ",
        strategy_->world_size());
  if (!options_.fused_update || options_.layerwise != nullptr) return;
  constexpr const char* kReason =
      " needs all gradients before the first update, which a fused update keeps only layer by layer (accumulate_schedule = layerwise)";
  check(options_.clip_norm == 0, "trainer: clipping by the global norm", kReason);
  check(options_.loss_scale.mode != ScalerMode::dynamic, "trainer: a dynamic loss scale", kReason);
  check(options_.non_finite != NonFinitePolicy::skip, "trainer: skipping steps that are not finite", kReason);
}

std::int64_t Trainer::steps_per_epoch() const {
  const std::int64_t batches = options_.accumulate * loader_.world_size();
  return (loader_.num_batches() + batches - 1) / batches;
}

LayerwiseWindow Trainer::forward_layerwise(const Loader::Upcoming& window) {
  check(window.batches <= loader_.num_held(), "trainer: layer by layer the loader must hold the window's ", window.batches,
        " batches, it holds ", loader_.num_held());
  optimizer_.zero_grad();  // of a window that an exception broke off
  std::vector<Batch> batches;
  for (std::int64_t i = 0; i < num_batches(window); ++i) batches.push_back(next_batch(window, i));
  random_state().seed = options_.seed;
  return {*options_.layerwise, std::move(batches), {std::uint32_t(num_steps_), window.first}, strategy_->loss_factor(window), scaler_.scale()};
}

std::int64_t Trainer::num_batches(const Loader::Upcoming& window) const {
  // The first rank has as many as any.
  return strategy_->needs_all_ranks() ? std::min(options_.accumulate, window.all_batches) : window.batches;
}

Batch Trainer::next_batch(const Loader::Upcoming& window, std::int64_t index) {
  if (index < window.batches) return *loader_.next();
  if (window.batches == 0 && index == 0) loader_.skip();
  return loader_.blank();
}

void Trainer::run_window(const Loader::Upcoming& window, StepResult& result, const Announcements& announcements) {
  const std::int64_t batches = num_batches(window);
  if (batches == 0) {
    optimizer_.zero_grad();
    if (announcements) announcements();
    loader_.skip();
    return;
  }
  if (options_.layerwise != nullptr) {
    forward_layerwise(window).backward({.on_loss = adder_to(result), .announcements = announcements});
    return;
  }
  optimizer_.zero_grad();  // of a window that an exception broke off
  std::int64_t samples_before = window.first, first_size = 0;
  for (std::int64_t i = 0; i < batches; ++i) {
    strategy_->look_about();
    const Batch batch = next_batch(window, i);
    if (i == 0) first_size = batch.size;
    begin_section(batch.input.device(), (batch.is_blank ? "blank" : section_of(window, i, first_size)) + strategy_->section());
    random_state().seed = options_.seed;
    set_random_position(std::uint32_t(num_steps_), samples_before);
    const BatchLoss loss = loss_(batch, batch.is_blank ? 0 : strategy_->loss_factor(window));
    if (!batch.is_blank) adder_to(result)(loss);
    const bool is_last = i + 1 == batches;
    BackwardOptions backward_options;
    if (!announcements) backward_options.is_last = is_last;
    else backward_options = is_last ? announcements() : strategy_->accumulated();
    if (scaler_.scale() != 1) backward_options.grad_out = full(loss.loss.shape(), scaler_.scale(), loss.loss.dtype(), loss.loss.device());
    backward(loss.loss, std::move(backward_options));
    if (!is_last && announcements) strategy_->finish_backward();
    samples_before += batch.size;
  }
}

void Trainer::share(const Loader::Upcoming& window, StepResult& result) {
  if (strategy_->is_together()) {
    double sums[] = {result.loss, double(result.correct)};
    strategy_->sum(sums);
    result.loss = sums[0];
    result.correct = std::int64_t(sums[1]);
    result.targets = window.all_targets;
  } else {
    double sums[] = {result.loss, double(result.correct), double(window.targets)};
    strategy_->sum_of_replica(sums);
    result.loss = sums[0] / (strategy_->loss_factor(window) * std::max(sums[2], 1.0));
    result.correct = std::int64_t(sums[1]);
    result.targets = std::int64_t(sums[2]);
  }
}

void Trainer::step_without_batch(StepResult& result) {
  loader_.skip();
  optimizer_.begin_step(result.lr);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const KindScope kind(MemoryKind::gradient);
    set_grad(parameters_[i], zeros(parameters_[i].shape(), parameters_[i].dtype(), parameters_[i].device()));
    optimizer_.update_parameter(std::int64_t(i), result.lr);
    clear_grad(parameters_[i]);
  }
  optimizer_.end_step();
}

std::string Trainer::first_non_finite(const LoaderState& start, const Loader::Upcoming& window) {
  loader_.set_state(start);
  FiniteWatch watch;
  if (options_.layerwise != nullptr && options_.fused_update && num_batches(window) > 0) {
    GradMeasure measure(optimizer_);  // gradients of one stage at a time fit into memory
    const bool has_pieces = strategy_->sharded() != nullptr;
    forward_layerwise(window).backward(
        {.announcements = [&] { return has_pieces ? strategy_->reduced(measure.options()) : measure.options(); }});
    if (has_pieces) strategy_->finish_backward();  // while somebody listens
  } else {
    StepResult ignored;
    run_window(window, ignored, strategy_->sharded() ? Announcements([&] { return strategy_->reduced({}); }) : Announcements());
    if (strategy_->sharded()) strategy_->finish_backward();
  }
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
  // What allocates the same has one name (core/memory/layout.h): a whole window layer by layer, otherwise each micro-batch.
  const bool is_layerwise = options_.layerwise != nullptr;
  std::shared_ptr<void> pass;
  if (window.all_batches > 0) pass = strategy_->pass(concat(num_batches(window), " micro-batches"));
  if (!parameters_.empty())
    begin_section(loader_.device(),
                  is_layerwise ? concat("window of ", window.batches, ", samples ", window.samples, strategy_->section()) : "window");
  if (window.all_batches == 0) {
    optimizer_.zero_grad();
    loader_.next();
    return std::nullopt;
  }
  strategy_->begin_step(num_steps_ + 1);
  StepResult result{.lr = schedule_.lr(num_steps_), .samples = window.all_samples, .loss_scale = scaler_.scale()};
  const bool is_together = strategy_->is_together();
  attempt(start, window, result);
  pass.reset();
  if (result.is_applied) finish_step(result);
  else if (!is_together) ++num_steps_;
  strategy_->end_step(scaler_);
  return result;
}

void Trainer::attempt(const LoaderState& start, const Loader::Upcoming& window, StepResult& result) {
  if (num_batches(window) == 0 && !strategy_->is_together()) return step_without_batch(result);
  if (options_.fused_update) {
    const bool needs_norm =
        options_.clip_norm > 0 || options_.loss_scale.mode == ScalerMode::dynamic || options_.non_finite == NonFinitePolicy::skip;
    if (needs_norm) step_in_two_passes(start, window, result);
    else step_fused(start, window, result);
    return;
  }
  run_window(window, result, [&] { return strategy_->reduced({}); });
  strategy_->finish_backward();
  share(window, result);
  judge(start, window, result, grad_norm(parameters_));
  if (result.is_applied) optimizer_.step(result.lr, grad_scale(result));
}

void Trainer::judge(const LoaderState& start, const Loader::Upcoming& window, StepResult& result, GradNorm measured) {
  strategy_->agree(measured.norm, measured.first_non_finite);
  const GradScaler::Unscaled gradients = scaler_.unscaled(measured);
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
}

double Trainer::grad_scale(const StepResult& result) const {
  const bool clips = options_.clip_norm > 0 && std::isfinite(result.grad_norm);
  return (clips ? clip_factor(result.grad_norm, options_.clip_norm) : 1) / result.loss_scale;
}

void Trainer::step_in_two_passes(const LoaderState& start, const Loader::Upcoming& window, StepResult& result) {
  GradMeasure measure(optimizer_);
  std::optional<LayerwiseWindow> pass;
  const bool has_batch = num_batches(window) > 0;  // without one, gradients are those of the other ranks
  const auto go_back = [&](bool is_repeated, const std::function<void(const BatchLoss&)>& on_loss, const Announcements& announcements) {
    if (has_batch) pass->backward({.is_repeated = is_repeated, .on_loss = on_loss, .announcements = announcements});
    else announcements();
    strategy_->finish_backward();
  };
  if (has_batch) pass.emplace(forward_layerwise(window));
  else loader_.skip();
  const CostMeter before = cost_meter();
  go_back(true, adder_to(result), [&] { return strategy_->reduced(measure.options()); });
  // A backward that only measures is work done twice, like a replay.
  CostMeter& meter = cost_meter();
  meter.replay.flops = before.replay.flops + (meter.total.flops - before.total.flops);
  meter.replay.bytes = before.replay.bytes + (meter.total.bytes - before.total.bytes);
  share(window, result);
  judge(start, window, result, measure.norm());
  if (!result.is_applied) return;
  if (!result.note.empty()) {
    // The policy `report` went through the window again to find the op.
    pass.reset();
    loader_.set_state(start);
    if (has_batch) pass.emplace(forward_layerwise(window));
    else loader_.skip();
  }
  FusedUpdate fused(optimizer_, result.lr, grad_scale(result), false);
  go_back(false, {}, [&] { return strategy_->reduced(fused.options()); });
  fused.finish();
}

void Trainer::step_fused(const LoaderState& start, const Loader::Upcoming& window, StepResult& result) {
  const bool stops = options_.non_finite == NonFinitePolicy::stop;
  FusedUpdate fused(optimizer_, result.lr, 1 / result.loss_scale, stops);
  const auto updates_now = [&] { return options_.non_finite == NonFinitePolicy::report || std::isfinite(result.loss); };
  std::int64_t first_non_finite = -1;
  try {
    run_window(window, result, [&] {
      share(window, result);
      if (updates_now()) return strategy_->reduced(fused.options());
      return strategy_->sharded() ? strategy_->reduced({}) : BackwardOptions();
    });
    if (updates_now() || strategy_->sharded()) strategy_->finish_backward();
    if (updates_now()) {
      result.grad_norm = fused.finish();  // a GPU tells of gradients only here
      first_non_finite = fused.first_non_finite();
      strategy_->agree(result.grad_norm, first_non_finite);
    }
  } catch (const NonFinite& error) {
    strategy_->abandon_backward();
    optimizer_.zero_grad();
    fail<NonFinite>("step ", num_steps_ + 1, ": ", error.what());
  }
  if (!std::isfinite(result.loss)) {
    const std::string what = concat("the loss of step ", num_steps_ + 1, " is ", exactly(result.loss));
    if (stops) handle_non_finite(start, window, result, what);  // throws; no update has begun
    result.note = what;
  } else if (first_non_finite >= 0) {
    result.note = concat("step ", num_steps_ + 1, ": the gradient of parameter '", optimizer_.parameter_name(first_non_finite),
                         "' is not finite");
  }
}

void Trainer::finish_step(StepResult& result) {
  optimizer_.zero_grad();
  StepCounts counts{optimizer_.first_non_finite(), double(optimizer_.num_lost_updates()), double(optimizer_.num_updated_elements())};
  strategy_->agree(counts);
  if (const std::int64_t index = counts.first_non_finite; index >= 0) {
    const std::string what =
        concat("the update of step ", num_steps_ + 1, " made parameter '", optimizer_.parameter_name(index),
               "' infinite or NaN, with finite gradients of norm ", exactly(result.grad_norm), " and lr ", exactly(result.lr));
    check<NonFinite>(options_.non_finite == NonFinitePolicy::report, what);
    if (result.note.empty()) result.note = what;
  }
  if (counts.updated_elements > 0) result.lost_updates_share = counts.lost_updates / counts.updated_elements;
  ++num_steps_;
}

Evaluation evaluate(Module& model, Loader& loader, const LossFunction& loss, Strategy* strategy) {
  const NoGradScope no_grad;
  const ModeScope evaluation_mode(model);
  Evaluation total;
  double correct = 0;
  if (loader.state().position != 0) loader.set_state({loader.state().epoch, 0});
  const std::shared_ptr<void> pass = strategy != nullptr ? strategy->pass("") : nullptr;
  for (Loader::Upcoming next = loader.upcoming(1); next.all_batches > 0; next = loader.upcoming(1)) {
    total.samples += next.all_samples;
    total.targets += next.all_targets;
    if (next.batches == 0) {
      loader.skip();
      if (strategy != nullptr && strategy->needs_all_ranks()) {
        const Batch blank = loader.blank();
        begin_section(loader.device(), "evaluation of none");
        loss(blank, 0);
      }
      continue;
    }
    if (strategy != nullptr) strategy->look_about();
    const std::optional<Batch> batch = loader.next();
    begin_section(batch->input.device(), concat("evaluation of ", batch->size));
    const BatchLoss batch_loss = loss(*batch, 1);
    total.loss += value_of(batch_loss.loss);
    correct += double(batch_loss.correct);
  }
  if (strategy != nullptr) {
    double sums[] = {total.loss, correct};
    strategy->sum(sums);
    total.loss = sums[0];
    correct = sums[1];
  }
  loader.next();
  const double count = double(total.targets > 0 ? total.targets : 1);
  total.loss /= count;
  total.accuracy = correct / count;
  return total;
}

}  // namespace refrain
