// What a kernel needs to be launched on a CUDA device. Needs no CUDA header.
#pragma once

#include <cstdint>

namespace refrain {

// The first bad value that kernels met since the last look: launches return before kernels run, so that a bad index can only
// be reported later. It lies in memory that host and device both see.
struct CudaFault {
  enum Kind : std::int32_t { none, embedding_index, cross_entropy_target };
  std::int32_t kind = none;       // set last, by a compare-and-swap: one kernel's thread writes the rest
  std::int32_t is_claimed = 0;
  std::int64_t position = 0, value = 0, limit = 0;  // the element, what it is, and what it should be below
};

struct Cuda {
  void* stream = nullptr;       // a cudaStream_t: the device's one stream of kernels
  CudaFault* fault = nullptr;   // as the device addresses it
  int index = 0;                // the device's number
};

}  // namespace refrain
