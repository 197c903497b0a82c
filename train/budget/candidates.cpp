#include <refrain/train/budget/candidates.h>

#include <refrain/core/check.h>
#include <refrain/train/budget/model_choices.h>
#include <refrain/train/planned_data.h>
#include <refrain/train/setup.h>

#include <algorithm>
#include <cmath>
#include <future>
#include <map>
#include <mutex>
#include <optional>

namespace refrain {

namespace {

constexpr std::size_t kFrontSize = 24;

// The configuration as far as candidates and plans depend on it, as a key.
std::string key_of(Config config, const PlanOptions& options) {
  config.memory_limit = config.memory_budget = {};
  config.run_dir.clear();
  return concat(to_toml(config), options.num_train, ' ', options.num_test);
}

Config without_checkpoints(Config config) {
  CheckpointCandidate none;
  return none.in(std::move(config));
}

// Neighbours that are alike as one part.
std::vector<BlockPart> merged(const ModelChoices& model, const ChainSolution& solution) {
  std::vector<BlockPart> parts;
  for (const std::size_t index : solution.choices) {
    const BlockPart& part = model.parts[index];
    if (part.first < 0) continue;
    if (!parts.empty()) {
      BlockPart& last = parts.back();
      const bool is_whole = last.group == 0 || (last.last - last.first + 1) % last.group == 0;
      if (last.per_block == part.per_block && last.group == part.group && last.keep == part.keep && is_whole) {
        last.last = part.last;
        continue;
      }
    }
    parts.push_back(part);
  }
  return parts;
}

CheckpointCandidate candidate_of(const ModelChoices& model, const ChainSolution& solution) {
  const std::vector<BlockPart> parts = merged(model, solution);
  CheckpointCandidate made{.replayed_flops = solution.cost};
  for (const std::size_t i : solution.choices) {
    made.peak_estimate = std::max(made.peak_estimate, made.kept_bytes + model.choices[i].peak);
    if (model.choices[i].end < model.num_stages) made.kept_bytes += model.choices[i].kept;
  }
  if (parts.size() == 1 && parts[0].group == 0) {
    made.checkpoint = !parts[0].per_block ? "none" : parts[0].keep.empty() ? "block" : "selective";
    made.keep = parts[0].keep;
    return made;
  }
  made.checkpoint = "custom";
  for (const BlockPart& part : parts) made.parts.push_back(to_text(part));
  return made;
}

// All blocks alike.
std::optional<CheckpointCandidate> uniform(const ModelChoices& model, bool per_block, const std::vector<std::string>& keep) {
  ChainSolution solution;
  for (std::size_t i = 0; i < model.choices.size(); ++i) {
    const BlockPart& part = model.parts[i];
    if (part.first >= 0 && (part.group > 0 || part.per_block != per_block || part.keep != keep)) continue;
    solution.choices.push_back(i);
    solution.cost += model.choices[i].cost;
  }
  if (solution.choices.empty()) return std::nullopt;
  std::sort(solution.choices.begin(), solution.choices.end(),
            [&](std::size_t a, std::size_t b) { return model.choices[a].begin < model.choices[b].begin; });
  return candidate_of(model, solution);
}

std::vector<CheckpointCandidate> make_candidates(Config config, const PlanOptions& options) {
  config = without_checkpoints(std::move(config));
  const PlannedData data = find_planned_data(config, options.num_train, options.num_test);
  adapt_to_data(config, PlannedSamples(data.train));
  config.batch = std::min(config.batch, data.train.size);
  config.accumulate = std::min(config.accumulate, (data.train.size + config.batch - 1) / config.batch);
  const ModelChoices model = measure_model(config, data.train);
  std::vector<CheckpointCandidate> candidates;
  const auto add = [&](const CheckpointCandidate& candidate) {
    const auto is_same = [&](const CheckpointCandidate& c) { return c.checkpoint == candidate.checkpoint && c.levels == candidate.levels && c.keep == candidate.keep && c.parts == candidate.parts; };
    if (std::none_of(candidates.begin(), candidates.end(), is_same)) candidates.push_back(candidate);
  };
  for (const ChainSolution& solution : pareto_front(model.num_stages, model.choices, kFrontSize)) add(candidate_of(model, solution));
  for (const std::vector<std::string>& keep : std::vector<std::vector<std::string>>{{}, {"attention"}}) {
    if (const auto candidate = uniform(model, true, keep)) add(*candidate);
  }
  if (const auto candidate = uniform(model, false, {})) add(*candidate);
  std::stable_sort(candidates.begin(), candidates.end(), [](const CheckpointCandidate& a, const CheckpointCandidate& b) {
    return a.replayed_flops != b.replayed_flops ? a.replayed_flops < b.replayed_flops : a.kept_bytes > b.kept_bytes;
  });
  // Nested regions replay most, and their numbers are not needed: they come last.
  for (const std::int64_t levels : {2, 3}) {
    if (model.num_blocks >= (levels == 2 ? 4u : 8u)) add({.checkpoint = "nested", .levels = levels});
  }
  return candidates;
}

// A value for each key, made once; several threads may ask at a time.
template <class Value>
class Cache {
 public:
  template <class Make>
  Value get(const std::string& key, Make&& make) {
    {
      const std::lock_guard lock(mutex_);
      if (const auto found = values_.find(key); found != values_.end()) return found->second;
    }
    Value value = make();
    const std::lock_guard lock(mutex_);
    return values_.emplace(key, std::move(value)).first->second;
  }

 private:
  std::mutex mutex_;
  std::map<std::string, Value> values_;
};

}  // namespace

Config CheckpointCandidate::in(Config config) const {
  config.checkpoint = checkpoint;
  config.checkpoint_levels = levels;
  config.checkpoint_keep = keep;
  config.checkpoint_parts = parts;
  config.memory_budget = {};
  return config;
}

std::string CheckpointCandidate::text() const {
  if (checkpoint == "nested") return concat("nested, ", levels, " levels");
  std::string text = checkpoint == "custom" ? "blocks" : checkpoint;
  for (std::size_t i = 0; i < keep.size(); ++i) text += concat(i == 0 ? " keep " : " ", keep[i]);
  for (std::size_t i = 0; i < parts.size(); ++i) text += concat(i == 0 ? " " : ", ", parts[i]);
  return text;
}

std::string CheckpointCandidate::flags() const {
  std::string text = "--checkpoint " + checkpoint;
  if (checkpoint == "nested") text += concat(" --checkpoint-levels ", levels);
  for (std::size_t i = 0; i < keep.size(); ++i) text += concat(i == 0 ? " --checkpoint-keep " : ",", keep[i]);
  for (std::size_t i = 0; i < parts.size(); ++i) text += concat(i == 0 ? " --checkpoint-parts \"" : ",", parts[i]);
  return parts.empty() ? text : text + '"';
}

std::vector<CheckpointCandidate> checkpoint_candidates(const Config& config, const PlanOptions& options) {
  static Cache<std::vector<CheckpointCandidate>> cache;
  return cache.get(key_of(without_checkpoints(config), options), [&] {
    // On a thread of its own, whose tape, random numbers and cost meter are nobody else's.
    return std::async(std::launch::async, [&] { return make_candidates(config, options); }).get();
  });
}

PlannedCost planned_cost(const Config& config, const PlanOptions& options) {
  static Cache<PlannedCost> cache;
  return cache.get(key_of(config, options), [&] {
    const Plan plan = plan_training(config, {.num_train = options.num_train, .num_test = options.num_test});
    return PlannedCost{.bytes = plan.reserved_bytes, .step = plan.step.total, .flops = plan.run.total.flops, .replayed_flops = plan.run.replay.flops};
  });
}

namespace {

// The most bytes that tensors ask for at a time, without packing and counting of work: a third of a plan's time. The arena holds
// no less, however blocks are laid out.
struct LeastReserved {
  std::int64_t bytes = 0;
  std::int64_t always_bytes = 0;  // of parameters, optimizer state and inputs, which exist all the time
};

LeastReserved least_reserved(const Config& config, const PlanOptions& options) {
  static Cache<LeastReserved> cache;
  return cache.get(key_of(config, options), [&] {
    const Plan plan = plan_training(config, {.num_train = options.num_train, .num_test = options.num_test, .work = false, .is_packed = false});
    LeastReserved least{.bytes = plan.ledger.peak_bytes()};
    for (const MemoryKind kind : {MemoryKind::parameter, MemoryKind::optimizer_state, MemoryKind::input})
      least.always_bytes += plan.ledger.peak_per_kind()[std::size_t(kind)];
    return least;
  });
}

}  // namespace

FirstFit first_fit(const Config& config, std::span<const CheckpointCandidate> candidates, std::int64_t budget, const PlanOptions& options) {
  check(!candidates.empty(), "budget: there is nothing to choose from");
  std::vector<std::optional<PlannedCost>> planned(candidates.size());
  std::vector<std::int64_t> least(candidates.size(), 0);  // that each can take; 0: not known
  const auto plan_exactly = [&](std::size_t i) {
    if (!planned[i]) planned[i] = planned_cost(candidates[i].in(config), options);
    return planned[i]->bytes <= budget;
  };
  // The cheapest one tells what exists all the time, under every candidate alike.
  const LeastReserved first = least_reserved(candidates[0].in(config), options);
  least[0] = first.bytes;
  if (first.bytes <= budget && plan_exactly(0)) return {0, *planned[0], -1};
  const std::int64_t always = first.always_bytes;
  std::vector<std::size_t> possible;
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    if (always + candidates[i].kept_bytes <= budget) possible.push_back(i);
  }
  for (std::size_t i = 0; i < possible.size(); i += 2) {
    const std::size_t end = std::min(i + 2, possible.size());
    std::future<LeastReserved> other;
    if (i + 1 < end) other = std::async(std::launch::async, [&, j = possible[i + 1]] { return least_reserved(candidates[j].in(config), options); });
    least[possible[i]] = least_reserved(candidates[possible[i]].in(config), options).bytes;
    if (other.valid()) least[possible[i + 1]] = other.get().bytes;
    for (std::size_t k = i; k < end; ++k) {
      if (least[possible[k]] <= budget && plan_exactly(possible[k])) return {std::ptrdiff_t(possible[k]), *planned[possible[k]], -1};
    }
  }
  // Nothing is within. What may be the least is found by estimates, good to a few per cent: only the least that is named hangs on
  // them, not what fits.
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (planned[i]) order.emplace_back(0, i);
    else if (least[i] > 0) order.emplace_back(double(least[i]), i);
    else order.emplace_back(double(always) + 0.97 * double(candidates[i].peak_estimate), i);
  }
  std::sort(order.begin(), order.end());
  FirstFit none;
  for (const auto& [estimate, i] : order) {
    if (none.least >= 0 && estimate >= double(none.planned.bytes)) continue;
    plan_exactly(i);
    if (none.least >= 0 && planned[i]->bytes >= none.planned.bytes) continue;
    none.least = std::ptrdiff_t(i);
    none.planned = *planned[i];
  }
  return none;
}

}  // namespace refrain
