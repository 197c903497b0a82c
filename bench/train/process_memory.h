// Memory of the whole process as Linux counts it.
#pragma once

#include <cstdint>

namespace refrain::bench {

// Resident bytes now and the most there ever were (VmRSS and VmHWM); 0 where /proc does not tell.
struct ProcessMemory {
  std::int64_t resident = 0, peak = 0;
};
ProcessMemory process_memory();

}  // namespace refrain::bench
