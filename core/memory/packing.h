// Offsets for blocks whose births and deaths are known beforehand: dynamic storage allocation, offline.
#pragma once

#include <cstdint>
#include <span>

namespace refrain {

struct PackedBlock {
  std::int64_t bytes = 0;
  std::int64_t birth = 0, death = 0;  // alive from birth until just before death, in any unit of time
  std::int64_t offset = -1;           // to be found
};

// Gives every block an offset of at least `base`, a multiple of Arena::kAlignment, so that no two blocks that are alive at
// one time overlap; where the highest ends (at least `base`) is returned. Blocks of 0 bytes get `base`.
//
// Largest first, each into the lowest gap that holds it: optimal packing is NP-hard, and this comes within a percent of the
// most bytes alive at a time on the programs it is for. Where it does not, longest-lived first is tried too.
std::int64_t pack(std::span<PackedBlock> blocks, std::int64_t base = 0);

// Pairs of blocks that are alive at one time, which is what pack() takes time for: about 30 million a second.
std::int64_t packing_work(std::span<const PackedBlock> blocks);

// The most bytes alive at a time, each block rounded to Arena::kAlignment: no packing ends lower.
std::int64_t packing_bound(std::span<const PackedBlock> blocks);

}  // namespace refrain
