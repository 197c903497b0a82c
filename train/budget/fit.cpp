#include <refrain/train/budget/fit.h>

#include <refrain/core/check.h>
#include <refrain/train/planned_data.h>
#include <refrain/train/report.h>

#include <algorithm>
#include <limits>
#include <map>

namespace refrain {

namespace {

constexpr std::size_t kMostCuts = 8;
constexpr std::int64_t kMostLayerwise = 64;  // micro-batches: a plan runs all of them

bool is_accepted(const Config& config) {
  try {
    check_config(config);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

// Sizes of micro-batches that divide `total`, largest first: about halves, from `largest` on.
std::vector<std::int64_t> micro_batches(std::int64_t total, std::int64_t largest) {
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = largest; size >= 1 && sizes.size() < kMostCuts; --size) {
    if (total % size == 0 && (sizes.empty() || size <= (sizes.back() + 1) / 2 || size == 1)) sizes.push_back(size);
  }
  return sizes;
}

Config with_micro_batch(Config config, std::int64_t size) {
  config.accumulate = config.batch * config.accumulate / size;
  config.eval_batch = config.eval_batch == 0 ? 0 : std::min(config.eval_batch, size);
  config.batch = size;
  return config;
}

// Layer by layer, all micro-batches of a part are kept at a time and its stages' numbers say little: only uniform policies.
std::vector<CheckpointCandidate> candidates_of(const Config& config, const PlanOptions& options) {
  return config.accumulate_schedule == "layerwise" ? uniform_candidates(config, options) : checkpoint_candidates(config, options);
}

struct Search {
  const FitOptions& options;
  std::int64_t budget;
  Fit fit = {};

  std::map<std::string, TensorBytes> lasting = {};               // of each precision
  std::map<std::vector<std::string>, Config> smallest = {};  // micro-batches that were looked at, of each precision, schedule and update

  // Bytes that exist at some time whatever the cut and the checkpoints: parameters, optimizer state, and the gradients of an update
  // that waits for all of them. Planned for the first cut.
  std::int64_t floor_of(const Config& config) {
    auto found = lasting.find(config.precision);
    if (found == lasting.end()) found = lasting.emplace(config.precision, tensor_bytes(config, options.plan)).first;
    const bool waits = config.accumulate_schedule == "ordinary" && config.update == "after";
    return found->second.parameters + (waits ? found->second.gradients : 0);
  }

  // Whether it fits without checkpoints.
  bool look(const Config& config) {
    smallest.insert_or_assign({config.precision, config.accumulate_schedule, config.update}, config);
    if (floor_of(config) > budget) return false;
    const std::vector<CheckpointCandidate> candidates = candidates_of(config, options.plan);
    const FirstFit found = first_fit(config, candidates, budget, options.plan, lasting.at(config.precision).parameters);
    if (found.index < 0) return false;
    const CheckpointCandidate& best = candidates[std::size_t(found.index)];
    fit.entries.push_back({best.in(config), best, found.planned});
    return found.index == 0;
  }

  // After nothing was found. Those with the lowest floor first, which rules others out.
  void find_least() {
    std::vector<std::pair<std::int64_t, Config>> order;
    for (const auto& [how, config] : smallest) order.emplace_back(floor_of(config), config);
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [floor, config] : order) {
      const std::int64_t below = fit.least ? fit.least->planned.bytes : std::numeric_limits<std::int64_t>::max();
      if (floor >= below) continue;
      const std::vector<CheckpointCandidate> candidates = candidates_of(config, options.plan);
      const std::optional<LeastFit> found = least_fit(config, candidates, below, options.plan);
      if (found) fit.least = FitEntry{candidates[found->index].in(config), candidates[found->index], found->planned};
    }
  }

  // As it is first; then with what else may lower the peak. Fused updates in the ordinary order do so in windows of one
  // micro-batch: in longer ones all gradients exist before the last micro-batch either way. Layer by layer they always do.
  bool look_at_cut(const Config& config) {
    if (look(config)) return true;
    const auto look_also = [&](const char* schedule, const char* update) {
      if (!options.schedule && config.accumulate_schedule != schedule) return false;
      Config other = config;
      if (options.schedule) other.accumulate_schedule = schedule;
      if (options.update) other.update = update;
      if (other == config || !is_accepted(other)) return false;
      if (other.accumulate_schedule != config.accumulate_schedule && other.accumulate > kMostLayerwise) return false;
      look(other);
      return true;
    };
    const bool is_fused = config.accumulate == 1 && look_also("ordinary", "fused");
    if (!is_fused) look_also("layerwise", "fused");
    return false;
  }

  void look_at_precision(const Config& config) {
    if (!options.batch) {
      look_at_cut(config);
      return;
    }
    const std::int64_t total = config.batch * config.accumulate;
    for (const std::int64_t size : micro_batches(total, total)) {
      if (look_at_cut(with_micro_batch(config, size))) break;
    }
  }
};

}  // namespace

Fit fit_training(const Config& given, std::int64_t budget, const FitOptions& options) {
  check(budget > 0, "fit: expected a budget above 0 bytes, got ", budget);
  const Config config = without_checkpoints(given);
  check_config(config);
  const std::int64_t samples = find_planned_data(config, options.plan.num_train, options.plan.num_test).train.size;
  check(config.batch <= samples && config.accumulate <= samples / config.batch, "fit: batch = ", config.batch, " and accumulate = ", config.accumulate,
        " make steps of more samples than the ", samples, " to train on");
  Search search{.options = options, .budget = budget};
  search.look_at_precision(config);
  for (const char* precision : {"bf16-mixed", "bf16-true"}) {
    Config other = config;
    other.precision = precision;
    if (options.precision && config.precision != precision && is_accepted(other)) search.look_at_precision(other);
  }
  std::stable_sort(search.fit.entries.begin(), search.fit.entries.end(), [&](const FitEntry& a, const FitEntry& b) {
    const bool a_is_given = a.config.precision == config.precision, b_is_given = b.config.precision == config.precision;
    if (a_is_given != b_is_given) return a_is_given;
    if (a.work() != b.work()) return a.work() < b.work();
    return a.config.batch > b.config.batch;
  });
  if (search.fit.entries.empty()) search.find_least();
  return search.fit;
}

std::string flags_text(const Config& from, const FitEntry& entry) {
  const Config& to = entry.config;
  std::string text;
  const auto add = [&](const char* name, const auto& old_value, const auto& value) {
    if (old_value != value) text += concat(name, ' ', value, ' ');
  };
  add("--precision", from.precision, to.precision);
  add("--batch", from.batch, to.batch);
  add("--accumulate", from.accumulate, to.accumulate);
  add("--eval-batch", from.eval_batch, to.eval_batch);
  add("--update", from.update, to.update);
  add("--accumulate-schedule", from.accumulate_schedule, to.accumulate_schedule);
  text += entry.checkpoint.flags();
  if (!from.checkpoint_keep.empty() && to.checkpoint_keep.empty()) text += " --checkpoint-keep \"\"";
  if (!from.checkpoint_parts.empty() && to.checkpoint_parts.empty()) text += " --checkpoint-parts \"\"";
  if (from.memory_budget.value > 0) text += " --memory-budget 0";
  return text;
}

OutOfMemory with_nearest_fit(const OutOfMemory& error, const Config& config, std::int64_t limit, int world_size) {
  const auto said = [&](std::string_view before, const FitEntry& entry) {
    OutOfMemory more(concat(error.what(), "; ", before, flags_text(config, entry), " would take ", bytes_text(entry.planned.bytes)));
    more.requested = error.requested;
    more.held = error.held;
    more.reserved = error.reserved;
    more.largest_hole = error.largest_hole;
    more.limit = error.limit;
    return more;
  };
  try {
    if (config.checkpoint != "budget" && planned_cost(config, {.world_size = world_size}).bytes <= limit) return error;
    const FitOptions same_bits{.batch = false, .schedule = false, .plan = {.world_size = world_size}};
    Search search{.options = same_bits, .budget = limit};
    search.look_at_cut(without_checkpoints(config));
    const std::int64_t total = config.batch * config.accumulate;
    for (const std::int64_t size : micro_batches(total, config.batch)) {
      if (!search.fit.entries.empty()) break;
      if (size < config.batch) search.look_at_cut(with_micro_batch(without_checkpoints(config), size));
    }
    if (!search.fit.entries.empty()) return said("", search.fit.entries.front());
    search.find_least();
    return said("nothing fits; the least is what ", *search.fit.least);
  } catch (const Error&) {
    return error;  // what is wrong there is not what this is about
  }
}

}  // namespace refrain
