// What a device thread is on the host: a fiber, its coordinates, and where in the source it waits.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace refrain::emulator {

// A kernel did what no GPU would survive, or what has no meaning there: a race, a deadlock, an address outside.
struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Thread {
  uint3 index, block;
  dim3 block_extent, grid_extent;
  unsigned linear = 0, warp = 0, lane = 0;  // within the block
};

// The running device thread; null on the host. Changes at every switch of fibers.
extern thread_local Thread* current_thread;

// A place in a kernel's source, for messages.
struct Site {
  const char* file = "";
  int line = 0;
};
#define REFRAIN_EMULATOR_SITE ::refrain::emulator::Site site = {__builtin_FILE(), __builtin_LINE()}

}  // namespace refrain::emulator
