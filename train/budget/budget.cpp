#include <refrain/train/budget/budget.h>

#include <refrain/core/check.h>
#include <refrain/train/report.h>

#include <cstdio>
#include <limits>

namespace refrain {

Config with_budget_of(const Config& given, Config resolved) {
  if (given.checkpoint != "budget") return resolved;
  resolved.checkpoint = given.checkpoint;
  resolved.checkpoint_levels = given.checkpoint_levels;
  resolved.checkpoint_keep = given.checkpoint_keep;
  resolved.checkpoint_parts = given.checkpoint_parts;
  resolved.memory_budget = given.memory_budget;
  return resolved;
}

BudgetChoice choose_budget(const Config& config, const PlanOptions& options) {
  if (config.checkpoint != "budget") return {.config = config};
  const std::int64_t budget = config.memory_budget.value;
  const std::vector<CheckpointCandidate> candidates = checkpoint_candidates(config, options);
  const FirstFit fit = first_fit(config, candidates, budget, options);
  if (fit.index < 0) {
    const LeastFit least = *least_fit(config, candidates, std::numeric_limits<std::int64_t>::max(), options);
    fail<OutOfMemory>("memory_budget: nothing fits into ", bytes_text(budget), "; the least is ", least.planned.bytes, " bytes (", bytes_text(least.planned.bytes),
                      ") with ", candidates[least.index].flags(), "; `refrain fit` also looks at other micro-batches");
  }
  const CheckpointCandidate& chosen = candidates[std::size_t(fit.index)];
  char share[32];
  std::snprintf(share, sizeof share, "%.1f %%", 100 * fit.planned.extra_flops_share());
  return {chosen.in(config), chosen, fit.planned,
          concat("memory budget ", bytes_text(budget), ": ", chosen.text(), "; takes ", bytes_text(fit.planned.bytes), ", ", share, " extra FLOPs")};
}

}  // namespace refrain
