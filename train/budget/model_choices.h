// The numbers of a model's stages for chain_budget.h: bytes kept, peaks and replayed FLOPs of every way to run a block, or a
// group of blocks, found by running them on a plan device.
#pragma once

#include <refrain/data/planned_samples.h>
#include <refrain/train/budget/block_parts.h>
#include <refrain/train/budget/chain_budget.h>
#include <refrain/train/config.h>

#include <map>
#include <vector>

namespace refrain {

struct ModelChoices {
  std::size_t num_stages = 0, num_blocks = 0;
  std::vector<ChainChoice> choices;   // cost: replayed FLOPs of a window
  std::vector<BlockPart> parts;       // what each choice is; first < 0 for stages that are no blocks
  std::map<std::int64_t, std::int64_t> kept_nested;  // of nested checkpoints of 2 and 3 levels: bytes kept by all stages but the last
};

// Under the configuration's batch, precision, update and schedule; its checkpoint keys do not count. Blocks with parameters of the
// same shapes are measured once, groups of more than four blocks are extrapolated from those of three and four. The numbers
// are for finding candidates, not for promises: those come from planning the whole program. Without `groups`, only single stages are measured. `config` is resolved
// (adapt_to_data). Runs on the calling thread, which should be one of its own, as plan_training's is.
ModelChoices measure_model(const Config& config, const PlannedSamples::Sizes& samples, bool groups = true);

}  // namespace refrain
