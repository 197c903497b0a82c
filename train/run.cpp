#include <refrain/train/run.h>

#include <refrain/autograd/random.h>
#include <refrain/autograd/finite_watch.h>
#include <refrain/core/cpu/process_memory.h>
#include <refrain/core/cuda/backend.h>
#include <refrain/core/io/snapshot.h>
#include <refrain/core/parallel.h>
#include <refrain/dist/join_group.h>
#include <refrain/kernels/common/cuda/library.h>
#include <refrain/kernels/kernel.h>
#include <refrain/train/budget/budget.h>
#include <refrain/train/budget/fit.h>
#include <refrain/train/clock.h>
#include <refrain/train/device_choice.h>
#include <refrain/train/layout_scope.h>
#include <refrain/train/metrics.h>
#include <refrain/train/peak_json.h>
#include <refrain/train/plan.h>
#include <refrain/train/program.h>
#include <refrain/train/report.h>
#include <refrain/train/run_memory.h>
#include <refrain/train/setup.h>
#include <refrain/train/snapshot_state.h>

#include <algorithm>
#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

namespace refrain {

namespace fs = std::filesystem;

namespace {

void note(const RunHooks& hooks, const std::string& text) {
  if (hooks.on_note) hooks.on_note(text);
}

// A mean that forgets: the last 50 steps or so carry most of the weight. Right from the first value on.
class DecayingMean {
 public:
  void add(double value) {
    sum_ = kKeep * sum_ + value;
    weight_ = kKeep * weight_ + 1;
  }
  double value() const { return weight_ > 0 ? sum_ / weight_ : 0; }

 private:
  static constexpr double kKeep = 0.98;
  double sum_ = 0, weight_ = 0;
};

void apply_process_settings(const Config& config) {
  if (config.threads > 0) set_num_threads(int(config.threads));
}

// The device's limit during a run: the configuration's, or what is free now, so that an exception comes before the kernel's
// kill. A lower one that the device has already stays.
struct RunLimit {
  RunLimit(const Config& config, const Device& device) {
    const std::int64_t reserved = device.reserved_bytes();
    const std::int64_t free = std::min(free_memory(device), std::numeric_limits<std::int64_t>::max() - reserved);
    if (config.offload != "none") {
      const int ranks = place_from_environment().local_world_size;
      const std::int64_t share = std::max<std::int64_t>(free_memory(Device::cpu()) / ranks, 1);
      if (share < device.host().memory_limit())
        host_scope.emplace(device.host(), share,
                           concat("what the machine had free at the start", ranks > 1 ? concat(", for each of ", ranks, " ranks") : ""));
    }
    const std::int64_t budget = config.memory_budget.value, limit = config.memory_limit.value;
    // A plan within the budget needs no limit; steps that are no part of it, such as windows that are run again, may not exceed it.
    if (budget > 0 && (limit == 0 || budget < limit)) scope.emplace(device, budget, "memory_budget");
    else if (limit > 0) scope.emplace(device, limit, "memory_limit");
    else if (reserved + free < device.memory_limit())
      scope.emplace(device, std::max<std::int64_t>(reserved + free, 1), concat("what ", who_gives(device), " had free at the start"));
  }
  static const char* who_gives(const Device& device) {
    return device.kind() == DeviceKind::cuda ? "the device" : "system and control group";
  }
  std::optional<MemoryLimitScope> scope, host_scope;
};

// Host memory beside a CPU device's arena; all of the process's where the arena is elsewhere.
std::int64_t outside_arena(const Device& device, std::int64_t process_bytes) {
  return process_bytes - (device.kind() == DeviceKind::cuda ? 0 : device.reserved_bytes());
}

// Bytes that a rank sends a step, on average over some steps.
struct Sent {
  std::int64_t bytes = 0, steps = 0;
  void add(std::int64_t more) {
    bytes += more;
    ++steps;
  }
  double mean() const { return steps > 0 ? double(bytes) / double(steps) : 0; }
};

// Everything of a run that lives from its first to its last step.
struct Run : Program {
  Run(const Config& given, const Device& on_device, const RunHooks& run_hooks, const RunMemory& run_memory,
      std::shared_ptr<ProcessGroup> group)
      : Program{given, load_samples(given, Split::train), load_samples(given, Split::test), on_device, std::move(group)},
        hooks(run_hooks),
        memory(run_memory),
        run_dir(given.run_dir) {
    config.data_path = fs::absolute(config.data_path).lexically_normal();  // a resume may start somewhere else
  }

  void resume() {
    const SnapshotSearch search = find_latest_snapshot(run_dir);
    for (const SnapshotSearch::Skipped& skipped : search.skipped)
      note(hooks, concat("skipped ", skipped.path.string(), ": ", skipped.reason));
    TrainerState state;
    if (search.latest) state = load_snapshot(*search.latest, *model, *optimizer, std::uint64_t(config.seed), strategy->state_dict(), strategy->sharded(),
                                              strategy->replicas());
    double steps[] = {double(state.step), -double(state.step)};
    strategy->maximum(steps);
    check<DataError>(steps[0] == -steps[1], run_dir.string(), ": rank ", strategy->rank(), " finds a snapshot of step ", state.step,
                     ", another rank one of step ", state.step == std::int64_t(steps[0]) ? -steps[1] : steps[0]);
    if (!search.latest) return note(hooks, concat("no complete snapshot in ", run_dir.string(), ": starting from the beginning"));
    if (state.num_replicas > 1 && state.num_replicas != strategy->replicas().count)
      note(hooks, concat("the snapshot has the optimizer states of ", state.num_replicas, " replicas: all of ",
                         strategy->replicas().count, " go on with the first's"));
    strategy->load_state(state.strategy);
    loader->set_state(state.loader);
    trainer->set_num_steps(state.step);
    load_scaler(state.scaler);
    default_generator().set_position(state.generator_position);
    train_seconds = state.train_seconds;
    flops = state.flops;
    replayed_flops = state.replayed_flops;
    saved_step = state.step;
    note(hooks, concat("resumed from ", search.latest->string(), " after step ", state.step));
  }

  // The snapshot's loss scale, as far as the configuration's bounds let it.
  void load_scaler(std::map<std::string, double> state) {
    GradScaler& scaler = trainer->scaler();
    const GradScalerOptions& bounds = scaler.options();
    const double saved = state["scale"];
    state["scale"] = bounds.mode == ScalerMode::dynamic ? std::clamp(saved, bounds.min_scale, bounds.max_scale) : scaler.scale();
    if (state["scale"] != saved) note(hooks, concat("loss scale ", state["scale"], " instead of the snapshot's ", saved));
    scaler.load_state(state);
  }

  // `is_alone`: the other replicas do not save at this step.
  void save(bool is_alone = false) {
    if (saved_step == trainer->num_steps() || !strategy->can_save()) return;
    saved_step = trainer->num_steps();
    const Replicas replicas = is_alone ? Replicas{} : strategy->replicas();
    if (!strategy->is_of_main_replica() && replicas.are_alike) return;
    save_snapshot(run_dir, *model, *optimizer,
                  {.step = trainer->num_steps(),
                   .loader = loader->state(),
                   .seed = std::uint64_t(config.seed),
                   .generator_position = default_generator().position(),
                   .scaler = trainer->scaler().state_dict(),
                   .strategy = strategy->state_dict(),
                   .train_seconds = train_seconds,
                   .replayed_flops = replayed_flops,
                   .flops = flops},
                  strategy->sharded(), strategy->is_main(), replicas);
    if (strategy->is_main()) prune_snapshots(run_dir, config.keep_snapshots);
  }

  // One step with its time and cost; nothing at the end of an epoch.
  std::optional<StepResult> step() {
    const double begin = now(), waited = loader->wait_seconds();
    const CostMeter before = cost_meter();
    const std::int64_t sent_before = strategy->bytes_sent();
    if (!loader->is_at_end()) memory.mark_step(trainer->num_steps() + 1);
    std::optional<CudaGraphScope> graphs;
    if (config.cuda_graph) graphs.emplace(device);
    const std::optional<StepResult> result = trainer->step();
    if (graphs) graphs->finish();
    if (!result) return result;
    if (!result->note.empty()) note(hooks, result->note);
    train_seconds += now() - begin;
    for (Sent* sent : {&sent_in_all, &sent_since_row}) sent->add(strategy->bytes_sent() - sent_before);
    flops += cost_meter().total.flops - before.total.flops;
    replayed_flops += cost_meter().replay.flops - before.replay.flops;
    mean_step_seconds.add(now() - begin);
    mean_wait_seconds.add(loader->wait_seconds() - waited);
    mean_samples.add(double(result->samples));
    if (!result->is_applied) return result;
    mean_lost.add(result->lost_updates_share);
    mean_loss.add(result->loss);
    mean_accuracy.add(double(result->correct) / double(std::max<std::int64_t>(result->targets, 1)));
    return result;
  }

  // After a step that was not finite: what led there is whole, and can be resumed with other settings. Not so where a fused
  // update had begun, or where the policy let infinities into the weights.
  void save_after_non_finite() {
    if (optimizer->num_steps() != trainer->num_steps()) return;
    double num_non_finite[] = {0};
    for (const Tensor& parameter : optimizer->parameters()) num_non_finite[0] += double(count_non_finite(parameter));
    for (const NamedTensor& buffer : model->named_buffers()) num_non_finite[0] += double(count_non_finite(buffer.tensor));
    if (strategy->sharded()) strategy->sum_of_replica(num_non_finite);
    if (num_non_finite[0] > 0) return;
    save(!strategy->is_together());
  }

  // Where all ranks end for the same reason, none does before the first has saved. A fused update of pieces ends on the rank that has
  // the piece.
  void wait_for_others() {
    if (!strategy->is_together() || (strategy->sharded() && config.update == "fused")) return;
    try {
      double none[] = {0};
      strategy->maximum(none);
    } catch (const RankLost&) {  // it has gone already, for the reason that this one has
    }
  }

  double epoch() const { return double(loader->state().epoch) + double(loader->state().position) / double(loader->num_samples()); }
  double replayed_share() const { return flops > 0 ? replayed_flops / flops : 0; }

  Progress progress(const StepResult& result) const {
    const double step_seconds = std::max(mean_step_seconds.value(), 1e-12);
    return {.step = trainer->num_steps(),
            .total_steps = total,
            .epoch = epoch(),
            .epochs = config.epochs,
            .loss = result.loss,
            .average_loss = mean_loss.value(),
            .accuracy = mean_accuracy.value(),
            .lr = result.lr,
            .grad_norm = result.grad_norm,
            .loss_scale = result.loss_scale,
            .lost_updates_share = mean_lost.value(),
            .skipped_steps = trainer->scaler().num_skipped(),
            .samples_per_second = mean_samples.value() / step_seconds,
            .data_wait_share = mean_wait_seconds.value() / step_seconds,
            .replayed_flops_share = replayed_share(),
            .live_bytes = device.live_bytes(),
            .peak_bytes = device.peak_bytes(),
            .seconds_left = double(total - trainer->num_steps()) * step_seconds};
  }

  Evaluation evaluate_now(MetricsWriter* metrics) {
    memory.mark_evaluation();
    const Evaluation result = evaluate();
    if (metrics != nullptr)
      metrics->write(trainer->num_steps(), {{"epoch", epoch()}, {"test_loss", result.loss}, {"test_accuracy", result.accuracy}});
    if (hooks.on_evaluation) hooks.on_evaluation(trainer->num_steps(), epoch(), result);
    return result;
  }

  RunResult result(bool is_finished, const Evaluation& test) const {
    const double samples = double(loader->state().epoch) * double(loader->num_samples()) + double(loader->state().position);
    return {is_finished, strategy->is_main(), trainer->num_steps(), train_seconds, samples / std::max(train_seconds, 1e-12), test,
            device.peak_bytes()};
  }

  const RunHooks& hooks;
  const RunMemory& memory;
  fs::path run_dir;
  std::int64_t saved_step = -1;
  std::int64_t outside_at_start = 0;
  double train_seconds = 0, flops = 0, replayed_flops = 0;
  Sent sent_in_all, sent_since_row;  // since the run began or was resumed; since the last row of metrics
  DecayingMean mean_loss, mean_accuracy, mean_step_seconds, mean_wait_seconds, mean_samples, mean_lost;
};

MetricsRow metrics_row(const Progress& p, const StepResult& step, const Sent& sent) {
  return {{"epoch", p.epoch},
          {"loss", p.loss},
          {"accuracy", double(step.correct) / double(std::max<std::int64_t>(step.targets, 1))},
          {"lr", p.lr},
          {"grad_norm", p.grad_norm},
          {"loss_scale", p.loss_scale},
          {"lost_updates_share", step.lost_updates_share},
          {"skipped_steps", double(p.skipped_steps)},
          {"samples_per_second", p.samples_per_second},
          {"data_wait_share", p.data_wait_share},
          {"bytes_sent", sent.mean()},
          {"live_bytes", double(p.live_bytes)},
          {"peak_bytes", double(p.peak_bytes)},
          {"replayed_flops_share", p.replayed_flops_share}};
}

void write_summary(const Run& run, const RunResult& result) {
  const Ledger ledger = run.device.ledger();
  nlohmann::ordered_json json;
  json["test_accuracy"] = result.test.accuracy;
  json["test_loss"] = result.test.loss;
  json["steps"] = result.steps;
  json["device"] = run.config.device;
  json["precision"] = run.config.precision;
  json["loss_scale"] = run.trainer->scaler().scale();
  json["skipped_steps"] = run.trainer->scaler().num_skipped();
  json["lost_updates_share"] = run.mean_lost.value();
  json["train_seconds"] = result.train_seconds;
  json["samples_per_second"] = result.samples_per_second;
  add_peak(json, ledger, run.device.reserved_bytes());
  const std::int64_t outside_at_peak = outside_arena(run.device, process_memory().peak);
  json["outside_arena_bytes"] = {{"start", run.outside_at_start}};
  if (outside_at_peak >= 0) json["outside_arena_bytes"]["peak"] = outside_at_peak;
  std::string on_device;
  if (run.device.kind() == DeviceKind::cuda) {
    const CudaMemory memory = cuda_memory(run.device.index());
    const std::int64_t others = memory.total - memory.free - run.device.reserved_bytes();
    json["outside_arena_bytes"]["pinned"] = cuda_pinned_bytes();
    json["outside_arena_bytes"]["on_device"] = others;
    on_device = outside_arena_on_device_report(cuda_pinned_bytes(), others);
  }
  if (run.device.has_host())
    json["host_bytes"] = {{"peak", run.device.host().peak_bytes()}, {"reserved", run.device.host().reserved_bytes()}};
  json["bytes_sent_per_step"] = run.sent_in_all.mean();
  json["replayed_flops_share"] = run.replayed_share();
  json["flops"] = run.flops;
  json["num_parameters"] = run.model->num_parameters();
  json["threads"] = num_threads();
  json["seed"] = run.config.seed;
  json["version"] = version();
  write_file_atomically(run.run_dir / "report.txt",
                        peak_report(ledger, run.device.reserved_bytes()) + outside_arena_report(run.outside_at_start, outside_at_peak) + on_device);
  write_file_atomically(run.run_dir / "summary.json", json.dump(2) + "\n");
}

// To the end, or until it is stopped.
RunResult train(Run& run, MetricsWriter* metrics, const RunHooks& hooks) {
  bool is_snapshot_due = false;
  std::optional<Evaluation> last_evaluation;  // of the weights as they are now
  while (run.trainer->num_steps() < run.total) {
    std::optional<StepResult> step;
    try {
      step = run.step();
    } catch (const NonFinite&) {
      run.save_after_non_finite();
      run.wait_for_others();
      throw;
    }
    if (!step) {
      const std::int64_t epochs_done = run.loader->state().epoch;
      if (run.config.eval_every > 0 && epochs_done % run.config.eval_every == 0) last_evaluation = run.evaluate_now(metrics);
      continue;
    }
    const auto is_stopped = [&] { return run.strategy->stops(hooks.should_stop && hooks.should_stop()); };
    if (!step->is_applied) {
      if (!is_stopped()) continue;
      run.save();  // where the newest snapshot is of this step, a resume skips the same windows again
      return run.result(false, {});
    }
    last_evaluation.reset();
    const std::int64_t done = run.trainer->num_steps();
    const Progress progress = run.progress(*step);
    if (metrics != nullptr && (done % run.config.log_every == 0 || done == run.total))
      metrics->write(done, metrics_row(progress, *step, std::exchange(run.sent_since_row, {})));
    if (hooks.on_step) hooks.on_step(progress);
    is_snapshot_due |= run.config.snapshot_every > 0 && done % run.config.snapshot_every == 0;
    if (is_snapshot_due && run.strategy->can_save()) {
      run.save();
      is_snapshot_due = false;
    }
    if (done < run.total && is_stopped()) {
      run.save();
      return run.result(false, {});
    }
  }
  const std::int64_t sent_before = run.strategy->bytes_sent();
  run.strategy->finish(run.trainer->scaler());
  run.sent_in_all.bytes += run.strategy->bytes_sent() - sent_before;
  run.save();  // before the evaluation: an interrupt in it loses nothing
  const RunResult result = run.result(true, last_evaluation ? *last_evaluation : run.evaluate_now(metrics));
  if (run.strategy->is_main()) write_summary(run, result);
  return result;
}

}  // namespace

std::string_view version() { return REFRAIN_VERSION; }

bool holds_run(const fs::path& run_dir) {
  std::error_code error;  // what cannot be looked at fails when it is written to, with a better message
  return fs::exists(run_dir / "config.toml", error) || fs::exists(run_dir / "snapshots", error);
}

namespace {

// The ranks that this process trains with; null for none.
std::shared_ptr<ProcessGroup> group_of(const Config& config, const RunOptions& options, const Device& device) {
  if (options.group != nullptr) return options.group;
  const Place place = place_from_environment();
  check(place.world_size == 1 || config.strategy != "none", "strategy: a world of ", place.world_size,
        " ranks needs strategy = \"ddp\", \"local_sgd\" or \"sharded\", got \"none\"");
  return place.world_size > 1 ? join_group(place, device, GroupOptions::from_environment()) : nullptr;
}

// What is offloaded must have room where it goes: said before anything is made.
void check_host_memory(const Config& config, const Device& device, int world_size, int rank) {
  if (config.offload == "none") return;
  std::int64_t needed = 0;
  try {
    needed = plan_training(config, {.work = false, .is_packed = false, .world_size = world_size, .rank = rank}).host_reserved_bytes;
  } catch (const InvalidArgument&) {
    return;  // the run says why, with the data at hand; so with the next
  } catch (const DataError&) {
    return;
  }
  const Device host = device.host();
  if (needed <= host.memory_limit()) return;
  OutOfMemory error(concat("offload = \"", config.offload, "\": rank ", rank, " needs ", needed, " bytes of host memory, the limit is ",
                           host.memory_limit(), " (", host.memory_limit_reason(), ")"));
  error.requested = needed;
  error.limit = host.memory_limit();
  throw error;
}

// Other ranks learn at once why this one ends, and not when its memory has been reported on.
struct AbortScope {
  std::shared_ptr<ProcessGroup> group;
  template <class F>
  auto run(F&& f) const {
    try {
      return f();
    } catch (const std::exception& error) {
      if (group != nullptr) group->abort(error.what());
      throw;
    }
  }
};

}  // namespace

RunResult run_training(Config config, const RunOptions& options, const RunHooks& given_hooks) {
  check(!config.run_dir.empty(), "run_dir: is not set");
  apply_process_settings(config);
  const Device device = options.device ? *options.device : choose_device(config);
  const std::shared_ptr<ProcessGroup> group = group_of(config, options, device);
  const int world_size = group ? group->world_size() : 1, rank = group ? group->rank() : 0;
  const bool is_main = rank == 0;
  const RunHooks hooks = is_main ? given_hooks : RunHooks{.should_stop = given_hooks.should_stop};
  check(options.resume || !is_main || !holds_run(config.run_dir), "run_dir: ", config.run_dir,
        " holds a run already; resume it or choose another directory");
  // What is planned on the way is planned for this device. config.toml keeps the word, so that a resume may run elsewhere.
  const std::string asked_device = std::exchange(config.device, device_word(device));
  if (device.kind() == DeviceKind::cuda) {
    note(hooks, concat(config.device, ": ", cuda_name(device.index())));
    for (const cuda::LibraryState& library : cuda::library_states())
      if (!library.problem.empty()) note(hooks, concat("without ", library.file, ", whose work our own kernels do: ", library.problem));
  }
  const RunLimit limit(config, device);
  const BudgetChoice budget = choose_budget(config, {.world_size = world_size});
  if (!budget.note.empty()) note(hooks, budget.note);
  const Config given = std::exchange(config, budget.config);
  check_host_memory(config, device, world_size, rank);
  const LayoutScope layout(config, device, world_size, rank);
  if (group != nullptr) group->set_step(-1);  // throws when another rank has ended while this one planned
  // What an earlier run left behind is not this run's.
  device.trim();
  device.reset_peak();
  if (device.has_host()) {
    device.host().trim();
    device.host().reset_peak();
  }
  const RunMemory memory(config, device, world_size);
  // Of the run as it stands: complete, interrupted, or out of memory, where the receipt is what one needs.
  const auto report = [&](const Config& resolved, RunEnd end, double train_seconds) {
    if (!is_main) return;
    if (const std::string problem = memory.write(resolved, config.run_dir, end, train_seconds); !problem.empty()) note(hooks, problem);
  };
  const std::int64_t outside_at_start = outside_arena(device, process_memory().resident);
  Config resolved = config;
  try {
    return AbortScope{group}.run([&] {
      Run run(config, device, hooks, memory, group);
      resolved = run.config;
      run.outside_at_start = outside_at_start;
      if (options.resume) run.resume();
      std::optional<MetricsWriter> metrics;
      if (is_main) {
        make_directories(run.run_dir);
        Config written = with_budget_of(given, run.config);
        written.device = asked_device;
        write_file_atomically(run.run_dir / "config.toml", to_toml(written));
        metrics.emplace(run.run_dir, run.trainer->num_steps());
      }
      if (hooks.on_start) hooks.on_start(run.config, run.model->num_parameters());
      const RunResult result = train(run, metrics ? &*metrics : nullptr, hooks);
      report(resolved, RunEnd::complete_or_stopped, result.train_seconds);
      return result;
    });
  } catch (const OutOfMemory& error) {
    report(resolved, RunEnd::out_of_memory, 0);
    throw with_nearest_fit(error, resolved, device.memory_limit(), world_size);
  }
}

Evaluation run_evaluation(Config config, const RunOptions& options, const RunHooks& hooks) {
  config = without_checkpoints(config);  // there is no backward
  apply_process_settings(config);
  const Device device = options.device ? *options.device : choose_device(config);
  const RunLimit limit(config, device);
  const std::shared_ptr<const Samples> samples = load_samples(config, Split::test);
  adapt_to_data(config, *samples);
  const std::shared_ptr<ChainModel> model = build_model(config, device);
  const SnapshotSearch search = find_latest_snapshot(config.run_dir);
  for (const SnapshotSearch::Skipped& skipped : search.skipped)
    note(hooks, concat("skipped ", skipped.path.string(), ": ", skipped.reason));
  check<DataError>(search.latest.has_value(), config.run_dir, ": no complete snapshot");
  load_model(*search.latest, *model);
  note(hooks, concat("evaluating ", search.latest->string()));
  Loader loader(samples, {.batch = config.eval_batch, .shuffle = false, .num_slots = 2, .device = device});
  return evaluate(*model, loader, loss_function(build_loss(config, model)));
}

}  // namespace refrain
