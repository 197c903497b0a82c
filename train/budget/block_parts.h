// Checkpoint regions per block, as text: what the keys checkpoint = "custom" and checkpoint_parts say, and what a budget chooses.
//
//   "0-3 none"                      blocks 0 to 3 keep what backward reads; so do blocks that no line names
//   "4-11 block"                    a region per block
//   "4-11 block keep attention"     … that keeps the results of these ops
//   "12-23 group 4"                 a region around every 4 blocks, which are kept while they are replayed
//   "12-23 group 4 block"           … with a region per block inside; "keep …" may follow
//
// Blocks are counted from 0, without embedding and head.
#pragma once

#include <refrain/autograd/stage.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace refrain {

struct BlockPart {
  std::int64_t first = 0, last = 0;     // blocks; the last one is in it
  bool per_block = false;               // a region per block
  std::int64_t group = 0;               // above 0: a region around every so many blocks; the last may have fewer
  std::vector<std::string> keep = {};   // of the region per block
  friend bool operator==(const BlockPart&, const BlockPart&) = default;
};

// Throws InvalidArgument naming the line and what was expected.
BlockPart parse_block_part(const std::string& line);
std::string to_text(const BlockPart& part);

// The tree for CheckpointPolicy::parts. Throws InvalidArgument when parts overlap, are out of order or name blocks that are not there.
std::vector<ChainPart> chain_parts(std::span<const BlockPart> parts, std::span<const std::shared_ptr<Stage>> stages);

}  // namespace refrain
