// One access to memory, as the race detector is told of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace refrain::emulator {

struct Access {
  std::size_t bytes = 0;
  bool is_write = false, is_atomic = false;
  std::uint32_t place = 0;  // in the program, from its start
};
void note_access(const void* address, const Access& access, unsigned linear);

}  // namespace refrain::emulator
