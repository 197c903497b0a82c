#include <refrain/tests/matrix/cover.h>

#include <algorithm>
#include <random>
#include <unordered_set>
#include <utility>

namespace refrain::testing {

namespace {

// Which axes a combination is of: all subsets of `strength` axes, as bits.
std::vector<unsigned> axis_sets(int strength) {
  std::vector<unsigned> sets;
  for (unsigned bits = 0; bits < (1u << kNumAxes); ++bits)
    if (__builtin_popcount(bits) == strength) sets.push_back(bits);
  return sets;
}

// A number for the values a cell has on these axes.
std::uint64_t combination_of(const Cell& cell, unsigned set) {
  std::uint64_t key = set;
  for (std::size_t axis = 0; axis < kNumAxes; ++axis) key = key * 16 + ((set >> axis & 1) ? std::uint64_t(cell.at[axis]) + 1 : 0);
  return key;
}

}  // namespace

std::vector<Cell> cover(const std::vector<Cell>& cells, int strength, std::uint64_t seed) {
  const std::vector<unsigned> sets = axis_sets(strength);
  std::vector<Cell> order = cells;
  std::mt19937_64 random(seed);  // whose numbers are the same everywhere, unlike std::shuffle's use of them
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);

  std::unordered_set<std::uint64_t> missing;
  for (const Cell& cell : order)
    for (const unsigned set : sets) missing.insert(combination_of(cell, set));
  std::vector<Cell> chosen;
  while (!missing.empty()) {
    const auto num_new = [&](const Cell& cell) {
      return std::count_if(sets.begin(), sets.end(), [&](unsigned set) { return missing.contains(combination_of(cell, set)); });
    };
    const Cell* best = nullptr;
    std::ptrdiff_t most = 0;
    for (const Cell& cell : order)
      if (const std::ptrdiff_t count = num_new(cell); count > most) best = &cell, most = count;
    for (const unsigned set : sets) missing.erase(combination_of(*best, set));
    chosen.push_back(*best);
  }
  return chosen;
}

std::vector<Cell> cover_of_all(int strength) {
  std::vector<Cell> cells = all_cells();
  const auto refused = std::stable_partition(cells.begin(), cells.end(), [](const Cell& cell) { return !is_refused(cell); });
  std::vector<Cell> chosen = cover({cells.begin(), refused}, strength, 1);
  for (const Cell& cell : cover({refused, cells.end()}, strength, 1)) chosen.push_back(cell);
  return chosen;
}

}  // namespace refrain::testing
