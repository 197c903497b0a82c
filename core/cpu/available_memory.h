// How much memory the process may still take before the system refuses or kills it.
#pragma once

#include <cstdint>
#include <filesystem>

namespace refrain {

// The least of what the system has (MemAvailable) and what every control group that holds this process, the parents included,
// has left: its limit (v2: memory.max and memory.high, v1: memory.limit_in_bytes) minus what it uses, with the page cache that
// the kernel would give up first (inactive files) counted as free. 0 where a group is over its limit;
// std::numeric_limits<std::int64_t>::max() where nothing tells. Swap is not counted. Limits on address space (ulimit -v) bound the
// arena's range instead.
//
// `root` is where /proc and the mounted control groups are looked for, for tests.
std::int64_t available_memory(const std::filesystem::path& root = "/");

}  // namespace refrain
