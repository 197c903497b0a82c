#include <refrain/train/budget/chain_budget.h>

#include <refrain/core/check.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace refrain {

namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

// A way from the beginning of the chain to a position.
struct Way {
  std::int64_t kept = 0, cost = 0, peak = 0;
  std::size_t choice = 0;     // the last one
  std::size_t before = 0;     // in the front of where it begins
};
using Front = std::vector<Way>;

// Fewest kept bytes first; what is left costs less and less. The order of equal ways does not depend on that of the choices' begins.
void keep_pareto(Front& front) {
  std::sort(front.begin(), front.end(), [](const Way& a, const Way& b) {
    if (a.kept != b.kept) return a.kept < b.kept;
    if (a.cost != b.cost) return a.cost < b.cost;
    if (a.peak != b.peak) return a.peak < b.peak;
    return a.choice < b.choice;
  });
  std::size_t count = 0;
  for (const Way& way : front) {
    if (count == 0 || way.cost < front[count - 1].cost) front[count++] = way;
  }
  front.resize(count);
}

void check_choices(std::size_t num_stages, std::span<const ChainChoice> choices) {
  for (const ChainChoice& c : choices) {
    check(c.begin < c.end && c.end <= num_stages, "chain budget: expected stages within 0 to ", num_stages, ", got ", c.begin, " to ", c.end);
    check(c.kept >= 0 && c.peak >= 0 && c.cost >= 0, "chain budget: expected bytes and costs of at least 0, got ", c.kept, ", ", c.peak, ", ", c.cost);
  }
}

ChainSolution solution_of(const std::vector<Front>& fronts, const Way& last, std::span<const ChainChoice> choices) {
  ChainSolution solution{last.peak, last.cost, {}};
  const Way* way = &last;
  for (std::size_t at = fronts.size() - 1; at > 0;) {
    solution.choices.push_back(way->choice);
    at = choices[way->choice].begin;
    way = &fronts[at][way->before];
  }
  std::reverse(solution.choices.begin(), solution.choices.end());
  return solution;
}

}  // namespace

std::optional<ChainSolution> cheapest_within(std::size_t num_stages, std::span<const ChainChoice> choices, std::int64_t budget) {
  check_choices(num_stages, choices);
  std::vector<std::vector<std::size_t>> ending(num_stages + 1);
  for (std::size_t i = 0; i < choices.size(); ++i) ending[choices[i].end].push_back(i);
  std::vector<Front> fronts(num_stages + 1);
  fronts[0].push_back({});
  for (std::size_t at = 1; at <= num_stages; ++at) {
    Front& front = fronts[at];
    for (const std::size_t i : ending[at]) {
      const ChainChoice& choice = choices[i];
      const Front& from = fronts[choice.begin];
      for (std::size_t w = 0; w < from.size(); ++w) {
        const std::int64_t peak = from[w].kept + choice.peak;
        if (peak > budget) break;  // and so would all that keep more
        front.push_back({from[w].kept + choice.kept, from[w].cost + choice.cost, std::max(from[w].peak, peak), i, w});
      }
    }
    keep_pareto(front);
  }
  // The last way of a front costs least.
  if (fronts.back().empty()) return std::nullopt;
  return solution_of(fronts, fronts.back().back(), choices);
}

std::vector<ChainSolution> pareto_front(std::size_t num_stages, std::span<const ChainChoice> choices, std::size_t max_count) {
  std::vector<ChainSolution> front;
  // A ratio of 0: the next budget is just below the last peak.
  const auto walk = [&](double ratio) {
    front.clear();
    std::int64_t budget = kNoLimit;
    while (const std::optional<ChainSolution> solution = cheapest_within(num_stages, choices, budget)) {
      // Of one cost, the lowest peak stays.
      if (!front.empty() && front.back().cost == solution->cost) front.pop_back();
      front.push_back(*solution);
      budget = std::min(solution->peak - 1, std::int64_t(double(solution->peak) * (1 - ratio)));
      if (solution->peak == 0) break;
    }
  };
  if (max_count == 0) {
    walk(0);
    return front;
  }
  const std::optional<ChainSolution> first = cheapest_within(num_stages, choices, kNoLimit);
  if (!first) return front;
  std::int64_t least = 0, most = first->peak;
  while (least < most) {
    const std::int64_t middle = least + (most - least) / 2;
    if (const auto solution = cheapest_within(num_stages, choices, middle)) most = solution->peak;
    else least = middle + 1;
  }
  const double steps = double(std::max<std::size_t>(max_count, 2) - 1);
  walk(first->peak > 0 ? 1 - std::pow(double(std::max<std::int64_t>(least, 1)) / double(first->peak), 1 / steps) : 0);
  const std::optional<ChainSolution> last = cheapest_within(num_stages, choices, least);
  if (last && front.back().peak > last->peak) {
    if (front.back().cost == last->cost) front.pop_back();
    front.push_back(*last);
  }
  return front;
}

}  // namespace refrain
