// Memory of the whole process as Linux counts it: what lies outside the arena as well.
#pragma once

#include <cstdint>

namespace refrain {

// Resident bytes now and the most there ever were (VmRSS and VmHWM); 0 where /proc does not tell.
struct ProcessMemory {
  std::int64_t resident = 0, peak = 0;
};
ProcessMemory process_memory();

}  // namespace refrain
