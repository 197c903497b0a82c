// What a budget chooses from: checkpoint settings of one configuration, in a fixed order, each of which is planned exactly.
#pragma once

#include <refrain/train/plan.h>

#include <span>
#include <string>
#include <vector>

namespace refrain {

struct CheckpointCandidate {
  std::string checkpoint = "none";   // none, block, nested, selective or custom
  std::int64_t levels = 2;           // of nested
  std::vector<std::string> keep = {}, parts = {};
  std::int64_t replayed_flops = 0;   // of a window, as measured stage by stage
  std::int64_t kept_bytes = 0;       // by embedding and blocks when the loss is known; 0: not known
  std::int64_t peak_estimate = 0;    // beside what exists all the time; 0: not known

  // The configuration with these settings instead of its own.
  Config in(Config config) const;
  // "none", or such as "blocks 0-3 none, 4-11 block keep attention".
  std::string text() const;
  // The flags that make them, such as --checkpoint block.
  std::string flags() const;
};

// At most some 30: the Pareto front of kept bytes and replayed FLOPs over all regions and keep-lists (chain_budget.h), thinned,
// and the uniform policies; cheapest first, in an order that depends on nothing but the configuration without its checkpoint
// and memory keys. `config` need not be resolved. Throws InvalidArgument as plan_training() does.
std::vector<CheckpointCandidate> checkpoint_candidates(const Config& config, const PlanOptions& options = {});

// What a training takes from the system, and what it costs.
struct PlannedCost {
  std::int64_t bytes = 0;            // reserved by the arena
  Cost step;                         // of a whole window with its update
  double flops = 0, replayed_flops = 0;  // of all steps
  double extra_flops_share() const { return flops > replayed_flops ? replayed_flops / (flops - replayed_flops) : 0; }
};

// plan_training(), with what it says kept for as long as the process lives.
PlannedCost planned_cost(const Config& config, const PlanOptions& options = {});

struct FirstFit {
  std::ptrdiff_t index = -1;   // of the first candidate within the budget; -1: none is
  PlannedCost planned = {};    // of it
  std::ptrdiff_t least = -1;   // where none is within: the one that takes least
};

// The first candidate, in the given order, whose planned bytes are within the budget.
//
// A lower budget never gets a higher peak. Let candidate c be the first within budget B, and B' < B. All candidates within B' are
// within B, so none before c is. If c is within B' it is the first again; if not, what is taken has at most B' bytes, and c more.
//
// Candidates that cannot be within are not planned to the end: what parameters, optimizer state and inputs take plus what the
// candidate keeps until the loss is known exists at the same time, and the arena holds at least that; nor can it hold less than
// the tensors' own peak, which is planned first, without packing. Two are planned at a time.
FirstFit first_fit(const Config& config, std::span<const CheckpointCandidate> candidates, std::int64_t budget, const PlanOptions& options = {});

}  // namespace refrain
