#include <refrain/train/remedies.h>

#include <refrain/core/check.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <optional>

namespace refrain {

namespace {

using Flags = std::vector<std::string>;

// A combination takes at most one change of each family.
constexpr std::string_view kCheckpoint = "checkpoint", kUpdate = "update", kEvaluation = "evaluation", kMicroBatch = "micro-batch",
                           kPrecision = "precision", kOptimizer = "optimizer";

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

bool is_accepted(const Config& config, const Flags& flags) {
  try {
    with_flags(config, flags);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

void add_checkpoints(const Config& config, std::vector<Candidate>& out) {
  const auto add = [&](const std::string& name, Flags flags) {
    // A keep-list stands only beside `selective`.
    if (!config.checkpoint_keep.empty() && flags[1] != "selective") flags = joined(flags, {"--checkpoint-keep", ""});
    out.push_back({name, flags, RemedyEffect::same_bits, kCheckpoint});
  };
  const auto is_keeping = [&](const Flags& keep) { return config.checkpoint == "selective" && config.checkpoint_keep == keep; };
  if (!is_keeping({"matmul"})) add("checkpoint every block, keep products", {"--checkpoint", "selective", "--checkpoint-keep", "matmul"});
  if (!is_keeping({"attention"})) add("checkpoint every block, keep attention", {"--checkpoint", "selective", "--checkpoint-keep", "attention"});
  if (config.checkpoint != "block") add("checkpoint every block", {"--checkpoint", "block"});
  for (const std::int64_t levels : {2, 3}) {
    if (config.depth < (levels == 2 ? 4 : 8) || (config.checkpoint == "nested" && config.checkpoint_levels == levels)) continue;
    add(concat("checkpoint groups of blocks, ", levels, " levels"), {"--checkpoint", "nested", "--checkpoint-levels", std::to_string(levels)});
  }
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
  const auto add = [&](const std::string& name, const Flags& flags, std::string_view family) { out.push_back({name, flags, RemedyEffect::results, family}); };
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

std::vector<Candidate> candidates(const Config& config, std::int64_t eval_batch) {
  std::vector<Candidate> out;
  add_checkpoints(config, out);
  if (config.update != "fused")
    out.push_back({"update inside backward", {"--update", "fused"}, RemedyEffect::same_bits, kUpdate});
  if (eval_batch > 1) {
    const std::int64_t half = (eval_batch + 1) / 2;
    out.push_back({concat("evaluation in batches of ", half), {"--eval-batch", std::to_string(half)}, RemedyEffect::same_bits, kEvaluation});
  }
  add_micro_batches(config, out);
  add_results(config, out);
  std::erase_if(out, [&](const Candidate& candidate) { return !is_accepted(config, candidate.flags); });
  return out;
}

// The best of each family together, as far as the effect allows; the checkpoint family in each of its forms, since which one
// is best depends on the others.
std::vector<Candidate> combinations(const std::vector<Candidate>& all, const std::vector<Remedy>& planned, RemedyEffect most) {
  Flags common;
  RemedyEffect effect = RemedyEffect::same_bits;
  std::size_t num_common = 0;
  for (const std::string_view family : {kUpdate, kEvaluation, kMicroBatch}) {
    std::optional<std::size_t> best;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].family != family || all[i].effect > most) continue;
      if (!best || planned[i].peak_bytes < planned[*best].peak_bytes) best = i;
    }
    if (!best) continue;
    common = joined(common, all[*best].flags);
    effect = std::max(effect, all[*best].effect);
    ++num_common;
  }
  const std::string name = effect == RemedyEffect::same_bits ? "all that keep every bit" : "all that keep the training up to rounding";
  std::vector<Candidate> out;
  if (effect != most) return out;  // then it is the combination with less effect
  if (num_common > 1) out.push_back({name, common, effect, {}});
  for (const Candidate& candidate : all)
    if (candidate.family == kCheckpoint && num_common > 0) out.push_back({name, joined(candidate.flags, common), effect, {}});
  return out;
}

class Planner {
 public:
  Planner(const Config& config, const PlanOptions& options, const Plan& base, const Receipt& receipt)
      : config_(config), options_(options), base_(base), receipt_(receipt) {
    options_.timeline = false;
  }

  std::vector<Remedy> plan(const std::vector<Candidate>& candidates) const {
    std::vector<Remedy> remedies(candidates.size());
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i; (i = next++) < candidates.size();) remedies[i] = plan(candidates[i]);
    };
    std::future<void> helper = std::async(std::launch::async, work);
    work();
    helper.get();
    return remedies;
  }

 private:
  Remedy plan(const Candidate& candidate) const {
    const Plan plan = plan_training(with_flags(config_, candidate.flags), options_);
    Remedy remedy{candidate.name, candidate.flags, candidate.effect, candidate.family};
    remedy.peak_bytes = plan.ledger.peak_bytes();
    remedy.reserved_bytes = plan.reserved_bytes;
    remedy.saved_bytes = receipt_.peak_bytes - remedy.peak_bytes;
    remedy.extra_flops_share = base_.run.total.flops > 0 ? plan.run.total.flops / base_.run.total.flops - 1 : 0;
    remedy.group_bytes = receipt_.sorting.bytes(plan.ledger.entries_at_peak());
    remedy.group_bytes.resize(receipt_.groups.size());  // what belongs to none of them is not asked for
    return remedy;
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
  const std::vector<Candidate> all = candidates(config, base.config.eval_batch);
  Remedies remedies{planner.plan(all), {}};
  for (const RemedyEffect most : {RemedyEffect::same_bits, RemedyEffect::rounding}) {
    std::vector<Remedy> combined = planner.plan(combinations(all, remedies.single, most));
    const auto best = std::min_element(combined.begin(), combined.end(), is_lower);
    const bool is_better = best != combined.end() && std::none_of(remedies.single.begin(), remedies.single.end(), [&](const Remedy& one) {
      return one.effect <= most && !is_lower(*best, one);
    });
    if (is_better && best->saved_bytes > 0) remedies.combined.push_back(*best);
  }
  std::erase_if(remedies.single, [&](const Remedy& remedy) { return !helps(remedy, receipt); });
  std::stable_sort(remedies.single.begin(), remedies.single.end(), is_lower);
  return remedies;
}

}  // namespace refrain
