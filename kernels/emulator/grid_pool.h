// The host threads that run a grid's blocks.
#pragma once

#include <cstdint>
#include <functional>

namespace refrain::emulator {

// Calls run(i) for every i below num_blocks, on the calling thread and others. run must not throw.
void run_blocks(std::int64_t num_blocks, const std::function<void(std::int64_t)>& run);

}  // namespace refrain::emulator
