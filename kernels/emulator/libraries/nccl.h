// What the fake of NCCL was asked for, and what tests want of it. Needs no header of NVIDIA's, nor the fake.
#pragma once

#include <atomic>

namespace refrain::emulator {

struct NcclRecord {
  std::atomic<int> num_groups{0}, num_messages{0};  // put on streams, by all ranks together
  std::atomic<int> num_communicators{0};            // alive
  std::atomic<int> failing_rank{-1};                // whose communicators meet an error
};
inline NcclRecord& nccl_record() {
  static NcclRecord record;
  return record;
}

}  // namespace refrain::emulator
