// Few cells that meet every combination of values of any two (or three) axes.
#pragma once

#include <refrain/tests/matrix/axes.h>

#include <cstdint>
#include <vector>

namespace refrain::testing {

// Of `cells`, a subset in which every combination of values of any `strength` axes occurs that occurs in `cells` at all. Greedy:
// always the cell that has most of what is missing, among equals the first in an order that `seed` gives.
std::vector<Cell> cover(const std::vector<Cell>& cells, int strength, std::uint64_t seed);

// Of all cells: such a subset of those that train, and after it of those that are refused.
std::vector<Cell> cover_of_all(int strength);

}  // namespace refrain::testing
