// What of the CUDA backend others ask for, beside an address range. Needs no CUDA header; a build without CUDA has it too, and
// whoever has a Device::cuda() may call it.
#pragma once

#include <refrain/core/device.h>

#include <cstdint>
#include <memory>
#include <string>

namespace refrain {

struct CudaMemory {
  std::int64_t free = 0, total = 0;  // of the whole device, other processes included
};
CudaMemory cuda_memory(int index);
std::string cuda_name(int index);  // such as "NVIDIA H100 80GB HBM3, compute capability 9.0"

// Host memory that is pinned for copies: it is outside every arena.
std::int64_t cuda_pinned_bytes();

// While it lives, work given to a CUDA device is gathered into CUDA graphs, each launched when something waits or copies to or
// from the host, and at the end. The program is called as always and does the same; the scope is meant for a step that repeats.
// Only the thread that made it may give the device work meanwhile. Nothing on other devices, inside another scope, and the first
// time on a device.
class CudaGraphScope {
 public:
  explicit CudaGraphScope(const Device& device);
  ~CudaGraphScope();  // finish(), but for its errors
  CudaGraphScope(const CudaGraphScope&) = delete;
  CudaGraphScope& operator=(const CudaGraphScope&) = delete;
  // Launches what is left. Throws CudaError.
  void finish();

 private:
  Device device_;
  bool is_on_;
};

// Since the device was made.
struct CudaGraphCounts {
  std::int64_t launches = 0, nodes = 0;  // graphs launched, and the kernels and copies in them
  std::int64_t instantiations = 0;       // of a topology that none of the last ones had
  std::int64_t bytes = 0;                // by which the device's free memory fell meanwhile: outside the arena
};
CudaGraphCounts cuda_graph_counts(const Device& device);

namespace detail {

// Pinned host memory of a tensor's size, from which the tensor is filled while the device computes. The calls go round in the
// order release(), host(), start(), finish(); the two in the middle may come from another thread.
class Upload {
 public:
  virtual ~Upload() = default;
  virtual void release() = 0;     // work given to the device from now on does not touch the tensor until finish()
  virtual std::byte* host() = 0;  // to be written to; waits until the last copy has left it
  // Copies its first bytes, once the device is through with what it was given before release().
  virtual void start(std::byte* to, std::int64_t bytes) = 0;
  virtual void finish() = 0;  // work given to the device from now on sees them
};
std::unique_ptr<Upload> new_upload(const Device& cuda, std::int64_t bytes);

}  // namespace detail

}  // namespace refrain
