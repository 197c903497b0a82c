// Copies between a device and any host memory, through a ring of pinned buffers. A copy from the host returns when its bytes
// are in the ring, one to the host when they are there.
#pragma once

#include <refrain/core/cuda/handles.cuh>

#include <array>
#include <memory>
#include <mutex>

namespace refrain::cuda {

class Staging {
 public:
  void write(std::byte* to, const std::byte* host, std::int64_t bytes, cudaStream_t stream);
  void read(std::byte* host, const std::byte* from, std::int64_t bytes, cudaStream_t stream);

 private:
  // Small enough that a copy's first and last buffer, which nothing overlaps with, cost little; large enough that starting a
  // copy does not count.
  static constexpr std::int64_t kBytes = std::int64_t{2} << 20;
  static constexpr int kNum = 4;

  struct Buffer {
    PinnedMemory memory{kBytes};
    Event is_free;  // recorded behind the last copy
  };
  Buffer& buffer(std::int64_t number) { return *buffers_[std::size_t(number % kNum)]; }
  Buffer& next();  // not in use any more

  std::mutex mutex_;
  std::array<std::unique_ptr<Buffer>, kNum> buffers_;  // made as they are needed
  std::int64_t num_used_ = 0;
};

}  // namespace refrain::cuda
