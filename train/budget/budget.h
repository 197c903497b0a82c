// checkpoint = "budget": the cheapest checkpoints with which a training stays within a number of bytes.
#pragma once

#include <refrain/train/budget/candidates.h>

#include <string>

namespace refrain {

struct BudgetChoice {
  Config config = {};         // checkpoint = "budget" turned into what was chosen
  CheckpointCandidate chosen = {};
  PlannedCost planned = {};
  std::string note = {};      // a line for people
};

// Chooses for config.memory_budget, a hard limit on what the arena takes from the system (the plan's reserved_bytes): the first
// within it of checkpoint_candidates(config), which cost more and more. Deterministic, so a resumed run finds the same. Configurations
// without a budget come back as they are, with an empty note.
//
// Throws OutOfMemory naming the least that there is when nothing is within, and InvalidArgument as plan_training does.
BudgetChoice choose_budget(const Config& config, const PlanOptions& options = {});

// `resolved` with the checkpoint keys of `given`, if that has a budget: what a run writes down, so that a resume chooses again.
Config with_budget_of(const Config& given, Config resolved);

}  // namespace refrain
