#include <refrain/train/plan.h>

#include <refrain/core/check.h>
#include <refrain/train/budget/budget.h>
#include <refrain/train/device_choice.h>
#include <refrain/train/planned_data.h>
#include <refrain/train/program.h>
#include <refrain/train/setup.h>
#include <refrain/train/snapshot_state.h>

#include <algorithm>
#include <array>
#include <future>
#include <limits>

namespace refrain {

namespace {

// Micro-batches of a window, and whole batches of an evaluation, that are run: the first, two between, and the last. Those
// between that are left out find the arena as their neighbours left it, and leave it so.
constexpr std::int64_t kMost = 4;
constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();

// Parameters that come and go with stages, and checkpoints that wait elsewhere, leave the arena otherwise than they found it: no
// micro-batch is like its neighbours.
bool drifts(const Config& config) { return config.offload != "none" || config.strategy == "sharded" || config.shard_ranks > 1; }
std::int64_t most_evaluated(const Config& config, const PlanOptions& options) {
  // A layout says where an evaluation's tensors lie.
  return options.whole_windows || (drifts(config) && config.packing == "online") ? kAll : kMost;
}
// Layer by layer all micro-batches of a window are alive together.
std::int64_t most_micro_batches(const Config& config, const PlanOptions& options) {
  return options.whole_windows || config.accumulate_schedule == "layerwise" || drifts(config) ? kAll : kMost;
}

// A device that follows the layout, if there is one, and keeps a timeline from the start, when one is wanted.
Device prepared_device(const Config& config, const PlanOptions& options, const std::shared_ptr<const Layout>& layout) {
  const Device device = plan_device(config);
  if (layout) device.set_placement(follow(layout));
  if (options.timeline) device.start_timeline();
  device.mark("build");
  return device;
}

// How an epoch of `samples` falls into whole windows and a shorter last one, of which each rank has its run.
struct Windows {
  Windows(std::int64_t samples, std::int64_t batch, std::int64_t accumulate, int world_size) {
    const std::int64_t batches = (samples + batch - 1) / batch, window = accumulate * world_size;
    steps = (batches + window - 1) / window;
    last_batches = batches - (steps - 1) * window;
    last_batch = samples - (batches - 1) * batch;
    if (last_batches == window && last_batch == batch) last_batches = 0;
  }
  bool has_last() const { return last_batches > 0; }
  std::int64_t whole() const { return steps - (has_last() ? 1 : 0); }
  // This rank's micro-batches of the shorter window.
  std::int64_t last_own(std::int64_t accumulate, int rank) const {
    return std::clamp<std::int64_t>(last_batches - rank * accumulate, 0, accumulate);
  }

  std::int64_t steps = 0;
  std::int64_t last_batches = 0, last_batch = 0;  // of the shorter window and all ranks; none: 0
};

// Work of what f does; the meter is this thread's, which does nothing else.
template <class F>
PlannedWork work_of(F&& f) {
  cost_meter() = {};
  f();
  return {cost_meter().total, cost_meter().replay};
}

Cost plus(const Cost& cost, double times, const Cost& more) { return {cost.flops + times * more.flops, cost.bytes + times * more.bytes}; }
PlannedWork plus(const PlannedWork& work, double times, const PlannedWork& more) {
  return {plus(work.total, times, more.total), plus(work.replay, times, more.replay)};
}

// Everything about memory that could make the same program take another course when it runs again.
struct MemoryState {
  explicit MemoryState(const Device& device)
      : reserved(device.reserved_bytes()), live(device.live_bytes()), count(device.live_count()), ledger(device.ledger()) {
    if (device.has_host()) host.push_back(MemoryState(device.host()));
  }
  friend bool operator==(const MemoryState& a, const MemoryState& b) {
    return a.reserved == b.reserved && a.live == b.live && a.count == b.count && a.ledger.peak_bytes() == b.ledger.peak_bytes() &&
           a.ledger.peak_per_kind() == b.ledger.peak_per_kind() && a.host == b.host;
  }
  std::int64_t reserved, live, count;
  Ledger ledger;
  std::vector<MemoryState> host;  // one, or none
};

enum class Part { window, last_window, evaluation };

// The parts of the program, run in the order of a training. A part that has left memory as it found it will do so again
// until another part changes something, and is not run again until then.
class Rehearsal {
 public:
  Rehearsal(const Config& config, const PlannedData& data, const Windows& windows, const Device& device, const PlanOptions& options = {})
      : most_(most_micro_batches(config, options)), most_evaluated_(most_evaluated(config, options)), world_size_(options.world_size),
        rank_(options.rank), windows_(windows),
        program_(shortened(config), samples(data.train, window_samples(config) + last_samples(config)),
                 samples(data.test, evaluated(config, data.test.size)), device, group_on(device)),
        state_(program_.device) {}

  // All steps and evaluations of a training of `total` steps.
  void run(std::int64_t total) {
    const std::int64_t eval_every = program_.config.eval_every;
    for (std::int64_t epoch = 1, done = 0; done < total; ++epoch) {
      const std::int64_t whole = std::min(windows_.whole(), total - done);
      for (std::int64_t i = 0; i < whole && !is_settled(Part::window); ++i) run(Part::window);
      done += whole;
      if (windows_.has_last() && done < total) {
        run(Part::last_window);
        ++done;
      }
      if (done == total || eval_every == 0) {
        if (is_training_settled()) break;
        continue;
      }
      if (epoch % eval_every == 0) run(Part::evaluation);
      if (!is_training_settled()) continue;
      if (is_settled(Part::evaluation)) break;
      // On to the next epoch with an evaluation.
      const std::int64_t epochs = std::min((eval_every - 1 - epoch % eval_every), (total - done) / windows_.steps);
      epoch += epochs;
      done += epochs * windows_.steps;
    }
    if (program_.strategy->sharded() != nullptr && program_.strategy->is_of_main_replica())
      save_snapshot({}, *program_.model, *program_.optimizer, {}, program_.strategy->sharded(), false);  // gathers as a run does
    run(Part::evaluation);
  }

  const Program& program() const { return program_; }

  // Where a part was last run.
  std::int64_t mark_of(Part part, const Timeline& timeline) const {
    for (std::size_t i = timeline.marks().size(); i-- > 0;)
      if (timeline.marks()[i].label == labels_[std::size_t(part)]) return std::int64_t(i);
    return -1;
  }

  // Of a window as far as it is run here, and of an evaluation.
  PlannedWork work(Part part) {
    return work_of([&] { execute(part); });
  }
  // Of one whole batch in an evaluation.
  PlannedWork evaluation_batch_work(const PlannedData& data) {
    const std::int64_t batch = eval_batch(program_.config);
    Loader loader(samples(data.test, batch), {.batch = batch, .shuffle = false, .num_slots = 2, .device = program_.device});
    return work_of([&] { evaluate(*program_.model, loader, program_.loss, program_.strategy.get()); });
  }

 private:
  Config shortened(Config config) const {
    config.accumulate = std::min(config.accumulate, most_);
    // Averaging finds memory as any step leaves it: it may follow each.
    config.local_steps = 1;
    config.local_warmup = std::min<std::int64_t>(config.local_warmup, 3);
    return config;
  }
  std::shared_ptr<ProcessGroup> group_on(const Device& device) const {
    return world_size_ > 1 ? planned_group(device, rank_, world_size_) : nullptr;
  }
  static std::shared_ptr<const Samples> samples(PlannedSamples::Sizes sizes, std::int64_t size) {
    sizes.size = size;
    return std::make_shared<PlannedSamples>(sizes);
  }
  // Samples of the whole window, which comes first, and of the shorter one.
  std::int64_t window_samples(const Config& config) const {
    return windows_.whole() > 0 ? std::min(config.accumulate, most_) * world_size_ * config.batch : 0;
  }
  // So many that this rank's part of the shorter window is as in the run, up to what is left out.
  std::int64_t last_samples(const Config& config) const {
    if (!windows_.has_last()) return 0;
    const std::int64_t run = std::min(config.accumulate, most_);
    // So few that only the first rank has any, and others go through as many blank ones where they have to.
    if (windows_.last_batches <= run) return (windows_.last_batches - 1) * config.batch + windows_.last_batch;
    const std::int64_t own = windows_.last_own(config.accumulate, rank_);
    const bool is_mine_last = windows_.last_batches <= (rank_ + 1) * config.accumulate;
    const std::int64_t batches = rank_ * run + std::min(own, run) + (is_mine_last ? 0 : 1);
    return (batches - 1) * config.batch + windows_.last_batch;
  }
  static std::int64_t eval_batch(const Config& config) { return config.eval_batch > 0 ? config.eval_batch : config.batch; }
  std::int64_t evaluated(const Config& config, std::int64_t num_test) const {
    const std::int64_t window = eval_batch(config) * world_size_, whole = num_test / window;
    return std::min(whole, most_evaluated_) * window + num_test % window;
  }

  bool is_settled(Part part) const { return settled_at_[std::size_t(part)] == version_; }
  bool is_training_settled() const {
    return (windows_.whole() == 0 || is_settled(Part::window)) && (!windows_.has_last() || is_settled(Part::last_window));
  }

  std::string label_of(Part part) const {
    return part == Part::evaluation ? "evaluation" : concat("step ", program_.trainer->num_steps() + 1);
  }

  void execute(Part part) {
    program_.device.mark(label_of(part));
    if (part == Part::evaluation) {
      program_.evaluate();
      return;
    }
    program_.loader->set_state({0, part == Part::window ? 0 : window_samples(program_.config)});
    program_.trainer->step();
  }

  void run(Part part) {
    if (is_settled(part)) return;
    labels_[std::size_t(part)] = label_of(part);
    execute(part);
    const MemoryState now(program_.device);
    if (now == state_ && !program_.strategy->will_change()) settled_at_[std::size_t(part)] = version_;
    else ++version_;
    state_ = now;
  }

  std::int64_t most_, most_evaluated_;
  int world_size_, rank_;
  Windows windows_;
  Program program_;
  MemoryState state_;
  std::array<std::string, 3> labels_;  // of the mark at which each part was last run
  std::int64_t version_ = 0;
  std::array<std::int64_t, 3> settled_at_{-1, -1, -1};
};

// Work of one whole micro-batch in the middle of a window: what a window of kMost has more than one without it.
PlannedWork middle_work(Config config, const PlannedData& data, const PlanOptions& options) {
  const PlanOptions ranks{.world_size = options.world_size, .rank = options.rank};
  const auto window_work = [&](std::int64_t accumulate) {
    config.accumulate = accumulate;
    const Windows windows(accumulate * config.batch * options.world_size, config.batch, accumulate, options.world_size);
    return Rehearsal(config, data, windows, plan_device(config), ranks).work(Part::window);
  };
  return plus(window_work(kMost), -1, window_work(kMost - 1));
}

std::shared_ptr<const Layout> packed_layout(const Config& config, const PlannedData& data, const Windows& windows,
                                            const PlanOptions& options, std::int64_t steps) {
  const Device device = plan_device(config);
  const LayoutRecorder recorder(device);
  Rehearsal rehearsal(config, data, windows, device, options);
  rehearsal.run(steps);
  return std::make_shared<const Layout>(recorder.pack());
}

Plan rehearse(const Config& config, const PlanOptions& options) {
  const PlannedData data = find_planned_data(config, options.num_train, options.num_test);
  const Windows windows(data.train.size, config.batch, config.accumulate, options.world_size);
  Plan plan;
  plan.num_train = data.train.size;
  plan.num_test = data.test.size;
  plan.world_size = options.world_size;
  plan.rank = options.rank;
  plan.notes = data.notes;
  plan.steps_per_epoch = windows.steps;
  plan.steps = total_steps(config, windows.steps);
  plan.evaluations = 1 + (config.eval_every > 0 ? (plan.steps - 1) / windows.steps / config.eval_every : 0);

  if (config.packing == "plan" && options.is_packed) plan.layout = packed_layout(config, data, windows, options, plan.steps);
  Rehearsal rehearsal(config, data, windows, prepared_device(config, options, plan.layout), options);
  rehearsal.run(plan.steps);
  const Program& program = rehearsal.program();
  plan.ledger = program.device.ledger();
  plan.reserved_bytes = program.device.reserved_bytes();
  if (program.device.has_host()) {
    plan.host = program.device.host().ledger();
    plan.host_reserved_bytes = program.device.host().reserved_bytes();
  }
  if (options.timeline) {
    plan.timeline = program.device.timeline();
    program.device.stop_timeline();
    plan.parts = {.window = rehearsal.mark_of(Part::window, *plan.timeline),
                  .last_window = rehearsal.mark_of(Part::last_window, *plan.timeline),
                  .evaluation = rehearsal.mark_of(Part::evaluation, *plan.timeline)};
  }
  plan.num_parameters = program.model->num_parameters();
  plan.config = program.config;
  plan.config.accumulate = config.accumulate;
  plan.config.local_steps = config.local_steps;
  plan.config.local_warmup = config.local_warmup;

  if (!options.work) return plan;
  // From here on only work counts.
  const PlannedWork window = windows.whole() > 0 ? rehearsal.work(Part::window) : PlannedWork{};
  const PlannedWork last = windows.has_last() ? rehearsal.work(Part::last_window) : PlannedWork{};
  const std::int64_t most = most_micro_batches(config, options);
  const std::int64_t last_own = windows.last_own(config.accumulate, options.rank);
  const bool leaves_out = std::max(windows.whole() > 0 ? config.accumulate : 0, last_own) > most;
  const PlannedWork middle = leaves_out ? middle_work(config, data, options) : PlannedWork{};
  const auto beyond = [](std::int64_t count, std::int64_t run) { return double(std::max<std::int64_t>(count - run, 0)); };
  const auto left_out = [&](std::int64_t count) { return beyond(count, most); };
  const PlannedWork whole_step = plus(window, left_out(config.accumulate), middle);
  const PlannedWork last_step = plus(last, left_out(last_own), middle);
  plan.step = windows.whole() > 0 ? whole_step : last_step;
  const double num_last = windows.has_last() ? double(plan.steps / windows.steps) : 0;
  plan.run = plus(plus({}, double(plan.steps) - num_last, whole_step), num_last, last_step);
  const std::int64_t whole_evaluated = data.test.size / (program.config.eval_batch * options.world_size);
  plan.evaluation = plus(rehearsal.work(Part::evaluation), beyond(whole_evaluated, most_evaluated(config, options)),
                         rehearsal.evaluation_batch_work(data));
  return plan;
}

}  // namespace

Plan plan_training(const Config& config, const PlanOptions& options) {
  PlanOptions main = options;  // all ranks choose what rank 0 chooses
  main.rank = 0;
  const BudgetChoice budget = choose_budget(config, main);
  // A new thread has a context, random numbers, a tape and a cost meter of its own.
  Plan plan = std::async(std::launch::async, [&] { return rehearse(budget.config, options); }).get();
  if (!budget.note.empty()) plan.notes.push_back(budget.note);
  return plan;
}

}  // namespace refrain
