#include <refrain/train/budget/candidates.h>

#include <refrain/core/check.h>
#include <refrain/train/budget/model_choices.h>
#include <refrain/train/budget/plan_cache.h>
#include <refrain/train/planned_data.h>
#include <refrain/train/setup.h>

#include <algorithm>
#include <future>
#include <optional>

namespace refrain {

namespace {

constexpr std::size_t kFrontSize = 24;

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

// Chosen from by a budget, or only the uniform ones.
enum class Choice { all, uniform };

std::vector<CheckpointCandidate> make_candidates(Config config, const PlanOptions& options, Choice choice) {
  config = without_checkpoints(std::move(config));
  const PlannedData data = find_planned_data(config, options.num_train, options.num_test);
  adapt_to_data(config, PlannedSamples(data.train));
  config.batch = std::min(config.batch, data.train.size);
  config.accumulate = std::min(config.accumulate, (data.train.size + config.batch - 1) / config.batch);
  const ModelChoices model = measure_model(config, data.train, choice == Choice::all);
  const std::int64_t full = data.train.size / config.batch;  // micro-batches that are not short
  std::vector<CheckpointCandidate> candidates;
  const auto add = [&](CheckpointCandidate candidate) {
    const auto is_same = [&](const CheckpointCandidate& c) {
      return c.checkpoint == candidate.checkpoint && c.levels == candidate.levels && c.keep == candidate.keep && c.parts == candidate.parts;
    };
    if (std::any_of(candidates.begin(), candidates.end(), is_same)) return;
    if (config.accumulate_schedule == "layerwise") {
      // All micro-batches of a window keep theirs at a time; what that peaks at is not the sum of what its stages do.
      candidate.kept_bytes = candidate.kept_bytes / config.accumulate * std::min(config.accumulate, full);
      candidate.peak_estimate = 0;
    } else {
      candidate.is_beside_gradients = config.accumulate > 1 && full > 1;
    }
    candidates.push_back(std::move(candidate));
  };
  if (choice == Choice::all) {
    for (const ChainSolution& solution : pareto_front(model.num_stages, model.choices, kFrontSize)) add(candidate_of(model, solution));
  }
  for (const std::vector<std::string>& keep : std::vector<std::vector<std::string>>{{}, {"attention"}}) {
    if (const auto candidate = uniform(model, true, keep)) add(*candidate);
  }
  if (const auto candidate = uniform(model, false, {})) add(*candidate);
  std::stable_sort(candidates.begin(), candidates.end(), [](const CheckpointCandidate& a, const CheckpointCandidate& b) {
    return a.replayed_flops != b.replayed_flops ? a.replayed_flops < b.replayed_flops : a.kept_bytes > b.kept_bytes;
  });
  // Nested regions replay most, and how much is not needed: they come last.
  for (const std::int64_t levels : {2, 3}) {
    if (model.num_blocks >= (levels == 2 ? 4u : 8u)) add({.checkpoint = "nested", .levels = levels, .kept_bytes = model.kept_nested.at(levels)});
  }
  return candidates;
}

}  // namespace

Config CheckpointCandidate::in(Config config) const {
  config.checkpoint = checkpoint;
  config.checkpoint_levels = levels;
  config.checkpoint_keep = keep;
  config.checkpoint_parts = parts;
  config.memory_budget = {};
  return config;
}

Config without_checkpoints(Config config) { return CheckpointCandidate{}.in(std::move(config)); }

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
  static PlanCache<std::vector<CheckpointCandidate>> cache;
  return cache.get(plan_key(without_checkpoints(config), options), [&] {
    // On a thread of its own, whose tape, random numbers and cost meter are nobody else's.
    return std::async(std::launch::async, [&] { return make_candidates(config, options, Choice::all); }).get();
  });
}

std::vector<CheckpointCandidate> uniform_candidates(const Config& config, const PlanOptions& options) {
  static PlanCache<std::vector<CheckpointCandidate>> cache;
  return cache.get(plan_key(without_checkpoints(config), options), [&] {
    return std::async(std::launch::async, [&] { return make_candidates(config, options, Choice::uniform); }).get();
  });
}

}  // namespace refrain
