#include <refrain/core/check.h>
#include <refrain/train/budget/candidates.h>
#include <refrain/train/budget/plan_cache.h>
#include <refrain/train/two_at_a_time.h>

#include <algorithm>

namespace refrain {

PlannedCost planned_cost(const Config& config, const PlanOptions& options) {
  static PlanCache<PlannedCost> cache;
  return cache.get(plan_key(config, options), [&] {
    const Plan plan = plan_training(config, {.num_train = options.num_train, .num_test = options.num_test, .world_size = options.world_size});
    return PlannedCost{.bytes = plan.reserved_bytes, .step = plan.step.total, .flops = plan.run.total.flops, .replayed_flops = plan.run.replay.flops};
  });
}

TensorBytes tensor_bytes(const Config& config, const PlanOptions& options) {
  static PlanCache<TensorBytes> cache;
  return cache.get(plan_key(config, options), [&] {
    const Plan plan = plan_training(config, {.num_train = options.num_train, .num_test = options.num_test, .work = false, .is_packed = false,
                                             .world_size = options.world_size});
    const auto most = [&](MemoryKind kind) { return plan.ledger.peak_per_kind()[std::size_t(kind)]; };
    return TensorBytes{.peak = plan.ledger.peak_bytes(),
                       .parameters = most(MemoryKind::parameter) + most(MemoryKind::optimizer_state),
                       .inputs = most(MemoryKind::input),
                       // A sum is sometimes made beside its parts, which would count a gradient twice.
                       .gradients = std::min(most(MemoryKind::gradient), most(MemoryKind::parameter))};
  });
}

std::int64_t least_possible(const TensorBytes& planned, const Config& config, const CheckpointCandidate& candidate) {
  const bool waits = config.accumulate_schedule == "ordinary" && config.update == "after";
  const std::int64_t kept = candidate.kept_bytes + (candidate.is_beside_gradients ? planned.gradients : 0);
  return planned.parameters + planned.inputs + std::max(kept, waits ? planned.gradients : 0);
}

FirstFit first_fit(const Config& config, std::span<const CheckpointCandidate> candidates, std::int64_t budget, const PlanOptions& options,
                   std::int64_t lasting) {
  check(!candidates.empty(), "budget: there is nothing to choose from");
  std::vector<std::size_t> possible;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (lasting + candidates[i].kept_bytes <= budget) possible.push_back(i);
  }
  if (possible.empty()) return {};
  std::vector<TensorBytes> least(candidates.size());
  FirstFit found;
  const auto plan_exactly = [&](std::size_t i) {
    if (least[i].peak > budget) return false;
    const PlannedCost planned = planned_cost(candidates[i].in(config), options);
    if (planned.bytes > budget) return false;
    found = {std::ptrdiff_t(i), planned};
    return true;
  };
  // The first one tells what exists under every candidate alike.
  const TensorBytes first = least[possible[0]] = tensor_bytes(candidates[possible[0]].in(config), options);
  if (plan_exactly(possible[0])) return found;
  possible.erase(possible.begin());
  std::erase_if(possible, [&](std::size_t i) { return least_possible(first, config, candidates[i]) > budget; });
  for (std::size_t k = 0; k < possible.size(); k += 2) {
    const std::size_t end = std::min(k + 2, possible.size());
    for_each_two_at_a_time(end - k, [&](std::size_t j) {
      const std::size_t i = possible[k + j];
      least[i] = tensor_bytes(candidates[i].in(config), options);
    });
    for (std::size_t j = k; j < end; ++j) {
      if (plan_exactly(possible[j])) return found;
    }
  }
  return found;
}

std::optional<LeastFit> least_fit(const Config& config, std::span<const CheckpointCandidate> candidates, std::int64_t below, const PlanOptions& options) {
  struct Estimate {
    std::int64_t bytes = 0;
    std::size_t index = 0;
    bool is_bound = false;  // the tensors' own peak
  };
  if (candidates.empty()) return std::nullopt;
  // What keeps least is the likeliest, and tells what exists under all.
  const auto fewest = std::min_element(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) { return a.kept_bytes < b.kept_bytes; });
  const TensorBytes first = tensor_bytes(fewest->in(config), options);
  std::vector<Estimate> estimates;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const CheckpointCandidate& c = candidates[i];
    const std::int64_t always = first.parameters + first.inputs + (c.is_beside_gradients ? first.gradients : 0);
    estimates.push_back({std::max(least_possible(first, config, c), always + std::int64_t(0.97 * double(c.peak_estimate))), i});
  }
  std::optional<LeastFit> found;
  const auto is_below = [&](const Estimate& e) { return e.bytes < (found ? std::min(below, found->planned.bytes) : below); };
  for (;;) {
    std::erase_if(estimates, [&](const Estimate& e) { return !is_below(e); });
    if (estimates.empty()) return found;
    std::sort(estimates.begin(), estimates.end(), [](const Estimate& a, const Estimate& b) { return std::pair(a.bytes, a.index) < std::pair(b.bytes, b.index); });
    if (estimates[0].is_bound) {
      const std::size_t i = estimates[0].index;
      const PlannedCost planned = planned_cost(candidates[i].in(config), options);
      if (planned.bytes < (found ? found->planned.bytes : below)) found = LeastFit{i, planned};
      estimates.erase(estimates.begin());
      continue;
    }
    const bool is_pair = estimates.size() > 1 && !estimates[1].is_bound;
    for_each_two_at_a_time(is_pair ? 2 : 1, [&](std::size_t k) {
      estimates[k].bytes = tensor_bytes(candidates[estimates[k].index].in(config), options).peak;
      estimates[k].is_bound = true;
    });
  }
}

}  // namespace refrain
