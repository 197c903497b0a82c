// What of a configuration to change so that it stays within a number of bytes: checkpoints, and, where allowed, how a batch is
// cut into micro-batches, when parameters are updated, and the precision.
#pragma once

#include <refrain/core/check.h>
#include <refrain/train/budget/candidates.h>

#include <optional>
#include <string>
#include <vector>

namespace refrain {

struct FitOptions {
  // What may change. The batch of a step stays, and so does every weight up to the rounding of sums; only a precision changes
  // the training.
  bool batch = true;       // micro-batches of the same total
  bool update = true;      // update after or fused
  bool schedule = true;    // accumulate_schedule ordinary or layerwise
  bool precision = false;
  PlanOptions plan = {};   // its numbers of samples
};

struct FitEntry {
  Config config;                 // with everything that was chosen
  CheckpointCandidate checkpoint;
  PlannedCost planned;

  // Estimated work of a step: its FLOPs, and ten more for each byte that kernels read or write, about what CPUs do meanwhile.
  double work() const { return planned.step.flops + 10 * planned.step.bytes; }
};

struct Fit {
  // The best of each cut, update, schedule and precision that has one: the given precision first, then least work, then larger
  // micro-batches. Empty: nothing fits.
  std::vector<FitEntry> entries;
  std::optional<FitEntry> least;  // when nothing fits: of the smallest micro-batches, under each update, schedule and precision
};

// Within `budget` bytes (reserved, as in budget.h). Smaller micro-batches are not looked at once one fits without checkpoints:
// they only add work. Throws InvalidArgument as plan_training does. The configuration's own checkpoint and memory keys do not count.
Fit fit_training(const Config& config, std::int64_t budget, const FitOptions& options = {});

// The flags that turn `from` into the entry, as a shell takes them: "--batch 16 --accumulate 4 --checkpoint block".
std::string flags_text(const Config& from, const FitEntry& entry);

// The error, with the nearest change of the training that stays within `limit` in its message: first what keeps every bit,
// checkpoints and then a fused update; then smaller micro-batches; else the least there is. As it came where the plan says
// that the configuration itself fits, or cannot be planned.
OutOfMemory with_nearest_fit(const OutOfMemory& error, const Config& config, std::int64_t limit, int world_size = 1);

}  // namespace refrain
