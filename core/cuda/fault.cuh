// Where kernels leave the first bad value they meet, and how the host tells it.
#pragma once

#include <refrain/core/cuda/handles.cuh>
#include <refrain/core/stream.h>

namespace refrain::cuda {

class FaultReport {
 public:
  FaultReport();
  CudaFault* on_device() const { return device_; }
  // To be called when the device is through with its kernels. Throws InvalidArgument for what they met, once.
  void check() const;

 private:
  PinnedMemory memory_;
  CudaFault* device_;
};

}  // namespace refrain::cuda
