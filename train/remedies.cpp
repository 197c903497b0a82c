#include <refrain/train/remedies.h>

#include <refrain/core/check.h>
#include <refrain/train/two_at_a_time.h>

#include <algorithm>
#include <limits>
#include <optional>

namespace refrain {

namespace {

using Flags = std::vector<std::string>;

// A combination takes at most one change of each family.
constexpr std::string_view kCheckpoint = "checkpoint", kUpdate = "update", kEvaluation = "evaluation", kMicroBatch = "micro-batch",
                           kLossChunk = "loss chunk", kMlpChunk = "mlp chunk", kPrecision = "precision", kOptimizer = "optimizer",
                           kOffload = "offload", kSharding = "sharding";

struct Candidate {
  std::string name;
  Flags flags;
  RemedyEffect effect = RemedyEffect::same_bits;
  std::string_view family = {};
};

Flags joined(Flags a, const Flags& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The configuration with the flags, unless it refuses them.
std::optional<Config> changed(const Config& config, const Flags& flags) {
  try {
    return with_flags(config, flags);
  } catch (const InvalidArgument&) {
    return {};
  }
}

// Without those that the configuration refuses, that change nothing, or that change the same as one before.
void keep_applicable(const Config& config, std::vector<Candidate>& candidates) {
  std::vector<Config> seen{config};
  std::erase_if(candidates, [&](const Candidate& candidate) {
    const std::optional<Config> one = changed(config, candidate.flags);
    if (!one || std::find(seen.begin(), seen.end(), *one) != seen.end()) return true;
    seen.push_back(*one);
    return false;
  });
}

void add_checkpoints(const Config& config, std::vector<Candidate>& out) {
  const auto add = [&](const std::string& name, Flags flags) {
    // What belongs to another policy must go.
    if (!config.checkpoint_keep.empty() && flags[1] != "selective") flags = joined(flags, {"--checkpoint-keep", ""});
    if (!config.checkpoint_parts.empty()) flags = joined(flags, {"--checkpoint-parts", ""});
    if (config.memory_budget.value > 0) flags = joined(flags, {"--memory-budget", "0"});
    out.push_back({name, flags, RemedyEffect::same_bits, kCheckpoint});
  };
  add("checkpoint every block, keep products", {"--checkpoint", "selective", "--checkpoint-keep", "matmul"});
  add("checkpoint every block, keep attention", {"--checkpoint", "selective", "--checkpoint-keep", "attention"});
  add("checkpoint every block", {"--checkpoint", "block"});
  for (const std::int64_t levels : {2, 3}) {
    if (config.depth < (levels == 2 ? 4 : 8)) continue;
    add(concat("checkpoint groups of blocks, ", levels, " levels"),
        {"--checkpoint", "nested", "--checkpoint-levels", std::to_string(levels)});
  }
}

void add_updates(std::int64_t accumulate, std::vector<Candidate>& out) {
  const auto add = [&](const std::string& name, const Flags& flags) { out.push_back({name, flags, RemedyEffect::same_bits, kUpdate}); };
  const Flags fused{"--update", "fused"}, layerwise{"--accumulate-schedule", "layerwise"};
  add("update inside backward", fused);
  if (accumulate > 1) add("all micro-batches stage by stage", layerwise);
  add("all micro-batches stage by stage, update inside backward", joined(fused, layerwise));
}

// A part of the rows at a time, of a loss over many classes and of an MLP: an eighth of what there is.
void add_chunks(const Config& resolved, std::vector<Candidate>& out) {
  const bool is_text = resolved.model == "gpt2";
  const std::int64_t patches = resolved.image_size / resolved.patch_size;
  const std::int64_t tokens = resolved.batch * (is_text ? resolved.context : patches * patches + 1);
  const auto add = [&](const char* what, const char* flag, std::string_view family, std::int64_t rows) {
    const std::int64_t chunk = (rows + 7) / 8;
    out.push_back({concat(what, " over ", chunk, " rows at a time"), {flag, std::to_string(chunk)}, RemedyEffect::rounding, family});
  };
  add("loss", "--loss-chunk", kLossChunk, is_text ? tokens : resolved.batch);
  add("MLP", "--mlp-chunk", kMlpChunk, tokens);
}

// What may live in host memory, and, of several ranks, on the others.
void add_places(const Config& config, int world_size, std::vector<Candidate>& out) {
  const auto add = [&](const char* name, const char* what) { out.push_back({name, {"--offload", what}, RemedyEffect::same_bits, kOffload}); };
  add("parameters and optimizer state in host memory", "parameters");
  if (config.checkpoint != "none") add("what checkpoints begin with in host memory", "boundaries");
  if (config.checkpoint != "none") add("parameters, optimizer state and what checkpoints begin with in host memory", "all");
  if (world_size > 1 && config.strategy == "ddp")
    out.push_back({concat("parameters, gradients and optimizer state sharded over ", world_size, " ranks"),
                   {"--strategy", "sharded"},
                   RemedyEffect::rounding,
                   kSharding});
}

void add_micro_batches(const Config& config, std::vector<Candidate>& out) {
  std::int64_t batch = config.batch, accumulate = config.accumulate;
  for (int halvings = 0; halvings < 3 && batch % 2 == 0; ++halvings) {
    batch /= 2;
    accumulate *= 2;
    out.push_back({concat("micro-batches of ", batch), {"--batch", std::to_string(batch), "--accumulate", std::to_string(accumulate)},
                   RemedyEffect::rounding, kMicroBatch});
  }
}

void add_results(const Config& config, std::vector<Candidate>& out) {
  const auto add = [&](const std::string& name, const Flags& flags, std::string_view family) {
    out.push_back({name, flags, RemedyEffect::results, family});
  };
  if (config.precision == "32-true") add("bf16 activations, f32 weights", {"--precision", "bf16-mixed"}, kPrecision);
  if (config.precision != "bf16-true") add("everything in bf16", {"--precision", "bf16-true"}, kPrecision);
  const bool is_adam = config.optimizer == "adam" || config.optimizer == "adamw";
  if (is_adam || config.momentum > 0) {
    Flags flags;
    if (is_adam) flags = {"--optimizer", "sgd"};
    if (config.momentum > 0) flags = joined(flags, {"--momentum", "0"});
    if (config.nesterov) flags = joined(flags, {"--no-nesterov"});
    add("SGD without momentum", flags, kOptimizer);
  }
}

std::vector<Candidate> candidates(const Config& config, const Config& resolved, int world_size) {
  std::vector<Candidate> out;
  add_checkpoints(config, out);
  add_updates(config.accumulate, out);
  add_chunks(resolved, out);
  add_places(config, world_size, out);
  if (resolved.eval_batch > 1) {
    const std::int64_t half = (resolved.eval_batch + 1) / 2;
    out.push_back(
        {concat("evaluation in batches of ", half), {"--eval-batch", std::to_string(half)}, RemedyEffect::same_bits, kEvaluation});
  }
  add_micro_batches(config, out);
  add_results(config, out);
  keep_applicable(config, out);
  return out;
}

class Planner {
 public:
  Planner(const Config& config, const PlanOptions& options, const Plan& base, const Receipt& receipt)
      : config_(config), options_(options), base_(base), receipt_(receipt) {
    options_.timeline = false;
  }

  std::vector<Remedy> plan(const std::vector<Candidate>& candidates, bool counts_work) const {
    std::vector<Remedy> remedies(candidates.size());
    for_each_two_at_a_time(candidates.size(), [&](std::size_t i) { remedies[i] = plan(candidates[i], counts_work); });
    return remedies;
  }

 private:
  Remedy plan(const Candidate& candidate, bool counts_work) const {
    Remedy remedy{candidate.name, candidate.flags, candidate.effect, candidate.family};
    const std::optional<Plan> planned = plan_if_accepted(candidate.flags, counts_work);
    if (!planned) {  // higher than any: it is never chosen
      remedy.peak_bytes = remedy.reserved_bytes = std::numeric_limits<std::int64_t>::max();
      remedy.saved_bytes = -1;
      return remedy;
    }
    const Plan& plan = *planned;
    remedy.peak_bytes = plan.ledger.peak_bytes();
    remedy.reserved_bytes = plan.reserved_bytes;
    remedy.saved_bytes = receipt_.peak_bytes - remedy.peak_bytes;
    remedy.extra_flops_share = base_.run.total.flops > 0 ? plan.run.total.flops / base_.run.total.flops - 1 : 0;
    remedy.group_bytes = receipt_.sorting.bytes(plan.ledger.entries_at_peak());
    remedy.group_bytes.resize(receipt_.groups.size());  // what belongs to none of them is not asked for
    return remedy;
  }

  // What is accepted alone need not be together, and not everything fits into a memory_budget.
  std::optional<Plan> plan_if_accepted(const Flags& flags, bool counts_work) const {
    PlanOptions options = options_;
    options.work = counts_work;
    try {
      return plan_training(with_flags(config_, flags), options);
    } catch (const InvalidArgument&) {
      return {};
    } catch (const OutOfMemory&) {
      return {};
    }
  }

  const Config& config_;
  PlanOptions options_;
  const Plan& base_;
  const Receipt& receipt_;
};

bool helps_group(const Remedy& remedy, const Receipt& receipt, std::size_t group) {
  return remedy.saved_bytes >= 0 && remedy.group_bytes[group] < receipt.groups[group].bytes;
}

bool helps(const Remedy& remedy, const Receipt& receipt) {
  if (remedy.saved_bytes > 0) return true;
  for (std::size_t group = 0; group < receipt.groups.size(); ++group)
    if (helps_group(remedy, receipt, group)) return true;
  return false;
}

bool is_lower(const Remedy& a, const Remedy& b) {
  return a.peak_bytes != b.peak_bytes ? a.peak_bytes < b.peak_bytes : a.extra_flops_share < b.extra_flops_share;
}

Candidate together(const std::vector<Candidate>& parts) {
  Candidate joint;
  for (const Candidate& part : parts) {
    joint.flags = joined(joint.flags, part.flags);
    joint.effect = std::max(joint.effect, part.effect);
  }
  joint.name =
      joint.effect == RemedyEffect::same_bits ? "lowest found that keeps every bit" : "lowest found that keeps the training up to rounding";
  return joint;
}

// Looks for the set of changes, at most one of each family, with the lowest peak. Changes help each other – gradients may be the
// peak only once activations are small – so whole sets are compared, and what a set does not need is taken out afterwards.
class Combinations {
 public:
  using Set = std::vector<Candidate>;

  explicit Combinations(const Planner& planner, const std::vector<Candidate>& all) : planner_(planner), all_(all) {}

  std::vector<Candidate> of_family(std::string_view family) const {
    std::vector<Candidate> list;
    for (const Candidate& candidate : all_) {
      // What keeps more than a checkpoint of the whole block is never lower than that.
      const bool keeps_more = family == kCheckpoint && candidate.flags[1] == "selective";
      if (candidate.family == family && !keeps_more) list.push_back(candidate);
    }
    return list;
  }

  // Every set with one of the family more, and the sets without.
  std::vector<Set> with_or_without(const std::vector<Set>& sets, std::string_view family) const {
    std::vector<Set> out = sets;
    for (const Candidate& candidate : of_family(family)) {
      for (Set set : sets) {
        set.push_back(candidate);
        out.push_back(std::move(set));
      }
    }
    return out;
  }
  // Every set with the first of the family, if there is one.
  std::vector<Set> with(std::vector<Set> sets, std::string_view family) const {
    const std::vector<Candidate> list = of_family(family);
    if (list.empty()) return sets;
    for (Set& set : sets) set.push_back(list.front());
    return sets;
  }

  // Of the sets with the lowest peak, give or take a hundredth, the first; without what it does not need.
  Set lowest(const std::vector<Set>& sets) const {
    const std::vector<std::int64_t> peaks = peaks_of(sets);
    const std::int64_t least = *std::min_element(peaks.begin(), peaks.end());
    const auto is_close = [least](std::int64_t peak) { return double(peak) <= 1.01 * double(least); };
    Set set = sets[std::size_t(std::find_if(peaks.begin(), peaks.end(), is_close) - peaks.begin())];
    for (bool is_smaller = true; is_smaller && set.size() > 1;) {
      std::vector<Set> smaller(set.size(), set);
      for (std::size_t i = 0; i < set.size(); ++i) smaller[i].erase(smaller[i].begin() + std::ptrdiff_t(i));
      const std::vector<std::int64_t> without = peaks_of(smaller);
      const auto needless = std::find_if(without.begin(), without.end(), is_close);
      is_smaller = needless != without.end();
      if (is_smaller) set = smaller[std::size_t(needless - without.begin())];
    }
    return set;
  }

 private:
  std::vector<std::int64_t> peaks_of(const std::vector<Set>& sets) const {
    std::vector<Candidate> joint;
    for (const Set& set : sets) joint.push_back(together(set));
    std::vector<std::int64_t> peaks;
    for (const Remedy& remedy : planner_.plan(joint, false)) peaks.push_back(remedy.peak_bytes);
    return peaks;
  }

  const Planner& planner_;
  const std::vector<Candidate>& all_;
};

std::vector<Remedy> combine(const Planner& planner, const std::vector<Candidate>& all, const std::vector<Remedy>& single) {
  const Combinations combinations(planner, all);
  std::vector<Candidate> found;
  const auto add = [&](const Combinations::Set& set) {
    if (set.size() > 1) found.push_back(together(set));
  };
  // Less work comes first: without a checkpoint, then as they are listed.
  const Combinations::Set exact = combinations.lowest(
      combinations.with(combinations.with_or_without(combinations.with_or_without({{}}, kCheckpoint), kUpdate), kEvaluation));
  add(exact);
  std::vector<Combinations::Set> rounded;
  for (const Combinations::Set& set : combinations.with_or_without({exact}, kMicroBatch)) {
    rounded.push_back(set);
    std::erase_if(rounded.back(), [](const Candidate& candidate) { return candidate.family == kUpdate; });
  }
  rounded = combinations.with(combinations.with(combinations.with_or_without(rounded, kUpdate), kLossChunk), kMlpChunk);
  add(combinations.lowest(rounded));

  std::vector<Remedy> remedies = planner.plan(found, true);
  std::erase_if(remedies, [&](const Remedy& remedy) {
    return remedy.saved_bytes <= 0 || std::any_of(single.begin(), single.end(), [&](const Remedy& one) {
             return one.effect <= remedy.effect && one.peak_bytes <= remedy.peak_bytes;
           });
  });
  if (remedies.size() == 2 && remedies[0].flags == remedies[1].flags) remedies.pop_back();
  return remedies;
}

}  // namespace

std::string_view name_of(RemedyEffect effect) {
  switch (effect) {
    case RemedyEffect::same_bits: return "same bits";
    case RemedyEffect::rounding: return "same up to rounding";
    case RemedyEffect::results: return "changes results";
  }
  return "";
}

std::string Remedy::flags_text() const {
  std::string text;
  for (const std::string& flag : flags) text += concat(text.empty() ? "" : " ", flag.empty() ? "\"\"" : flag);
  return text;
}

std::vector<const Remedy*> Remedies::of_group(const Receipt& receipt, std::size_t group) const {
  std::vector<const Remedy*> list;
  for (const Remedy& remedy : single)
    if (helps_group(remedy, receipt, group)) list.push_back(&remedy);
  return list;
}

Remedies plan_remedies(const Config& config, const PlanOptions& options, const Plan& base, const Receipt& receipt) {
  const Planner planner(config, options, base, receipt);
  const std::vector<Candidate> all = candidates(config, base.config, options.world_size);
  Remedies remedies{planner.plan(all, true), {}};
  remedies.combined = combine(planner, all, remedies.single);
  std::erase_if(remedies.single, [&](const Remedy& remedy) { return !helps(remedy, receipt); });
  std::stable_sort(remedies.single.begin(), remedies.single.end(), is_lower);
  return remedies;
}

}  // namespace refrain
