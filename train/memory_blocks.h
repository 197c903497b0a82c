// Which blocks of a timeline are worth writing down, and as what.
#pragma once

#include <refrain/core/memory/timeline.h>

#include <cstdint>
#include <vector>

namespace refrain {

struct ExportedBlocks {
  std::int64_t begin = 0, end = 0;  // ticks: the part of the timeline that the blocks are from
  // With the kind that each had for the longest time: a saved activation ends as a temporary.
  std::vector<MemoryBlock> blocks;
};

// All blocks, or of a timeline with more than `most` those of its last step.
ExportedBlocks exported_blocks(const Timeline& timeline, std::size_t most = 20'000);

}  // namespace refrain
