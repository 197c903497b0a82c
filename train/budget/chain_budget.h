// The cheapest way through a chain of stages within a number of bytes. Numbers only: what the bytes are of, and who measured
// them, is the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace refrain {

// One way to run stages begin … end of a chain: a single stage as it is or as a region, or several as one region.
struct ChainChoice {
  std::size_t begin = 0, end = 0;
  std::int64_t kept = 0;  // bytes that stay from its forward to its backward
  std::int64_t peak = 0;  // most bytes beyond what the stages before it keep, in its forward, backward and replay; with whatever
                          // else exists at that time, such as parameters and the gradients of later stages
  std::int64_t cost = 0;  // extra work, in any unit
};

struct ChainSolution {
  std::int64_t peak = 0, cost = 0;
  std::vector<std::size_t> choices;  // indices, in the order of the stages, which they cover once
};

// The chain of `num_stages` under the choices that cost least in total, with
//
//     max over choices c (peak of c + sum of kept of the choices before c) <= budget;
//
// nothing when no cover stays within it. Choices may have any order; those that do not fit together are left out. Throws
// InvalidArgument for a choice that is empty, ends beyond the chain, or has a negative number.
//
// A dynamic program over the stages: for each position the Pareto front of (bytes kept so far, cost so far) over all ways to
// get there. It is exact. What comes after a position depends on the way there through the kept bytes alone, adds to the cost
// what it adds after any other way, and stays within the budget with fewer kept bytes whenever it does with more. So a way that
// keeps no less and costs no less than another can be forgotten.
//
// The problem is the one of Chen et al. 2016 ("Training deep nets with sublinear memory cost") with a choice of what a stage
// keeps, as Beaumont et al. 2021 ("Efficient combination of rematerialization and offloading", and Rotor before it) have it.
// Those programs discretise memory; costs and bytes here are sums over few distinct stages, so the fronts stay small and
// nothing is rounded.
std::optional<ChainSolution> cheapest_within(std::size_t num_stages, std::span<const ChainChoice> choices, std::int64_t budget);

// All solutions that are not beaten in both: cheapest first, peaks falling. Budgets between two of them get the cheaper of the
// two that fits. `max_count` above 0 leaves some out: the first and last stay, and the peaks of those between fall in about
// equal ratios.
std::vector<ChainSolution> pareto_front(std::size_t num_stages, std::span<const ChainChoice> choices, std::size_t max_count = 0);

}  // namespace refrain
