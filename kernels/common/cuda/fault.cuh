// How a kernel reports a bad value: a launch has returned before it runs, so that the device can only leave a note for the host.
#pragma once

#include <refrain/core/cuda/platform.cuh>

namespace refrain::cuda {

// The first to claim the note writes it; its kind, last, makes it valid. The caller then skips the element.
__device__ __forceinline__ void report(CudaFault* fault, CudaFault::Kind kind, std::int64_t position, std::int64_t value,
                                       std::int64_t limit) {
  if (atomicCAS(reinterpret_cast<int*>(&fault->is_claimed), 0, 1) != 0) return;
  fault->position = position;
  fault->value = value;
  fault->limit = limit;
  __threadfence_system();
  fault->kind = kind;
}

}  // namespace refrain::cuda
