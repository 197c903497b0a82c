// What the race detector remembers of a byte of memory.
#pragma once

#include <cstdint>

namespace refrain::emulator {

// Of shared memory, within one interval between two barriers of the block. Lanes of a warp are told apart by stamps: the
// warp's count of __syncwarps when they last took part in one.
struct SharedCell {
  static constexpr int kGroups = 3;
  struct Readers {  // lanes of one warp that read with one stamp
    std::uint32_t lanes = 0;
    std::uint16_t stamp = 0;
    std::uint8_t warp = 0;
  };
  std::uint32_t interval = 0;
  std::uint32_t write_place = 0, read_place = 0;  // in the program
  std::uint16_t writer = 0, write_stamp = 0, reader = 0;
  bool is_written = false, is_atomic = false;
  std::uint32_t warps = 0;  // that have read: never forgotten within the interval, unlike groups
  Readers groups[kGroups];
};

// Of device memory, within one launch. Accesses are words; two reads, of different blocks where there were two, are kept, so
// that a write of a third, or of either, meets one.
struct GlobalCell {
  std::uint64_t write = 0, read = 0, other_read = 0;
  std::uint32_t write_place = 0, read_place = 0;
  std::uint16_t write_stamp = 0, read_stamp = 0;
};

struct GlobalAccess {  // packed into a word
  static constexpr std::uint64_t kAtomic = 1;
  static std::uint64_t pack(std::uint32_t launch, std::uint32_t block, std::uint32_t barriers, unsigned thread, bool is_atomic) {
    return std::uint64_t(launch & 0xfffff) << 44 | std::uint64_t(block & 0xfffff) << 24 | std::uint64_t(barriers & 0x1fff) << 11 |
           std::uint64_t(thread & 0x3ff) << 1 | std::uint64_t(is_atomic);
  }
  static bool same_launch(std::uint64_t a, std::uint64_t b) { return a >> 44 == b >> 44; }
  static bool same_block(std::uint64_t a, std::uint64_t b) { return a >> 24 == b >> 24; }
  static bool same_interval(std::uint64_t a, std::uint64_t b) { return a >> 11 == b >> 11; }
  static unsigned thread(std::uint64_t a) { return unsigned(a >> 1 & 0x3ff); }
  static unsigned block(std::uint64_t a) { return unsigned(a >> 24 & 0xfffff); }
  static bool is_atomic(std::uint64_t a) { return (a & kAtomic) != 0; }
};

}  // namespace refrain::emulator
