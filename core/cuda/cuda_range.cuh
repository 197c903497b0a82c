// The CUDA backend: a device's address range, its stream of kernels and its stream of uploads.
#pragma once

#include <refrain/core/cuda/fault.cuh>
#include <refrain/core/cuda/graph.cuh>
#include <refrain/core/cuda/staging.cuh>
#include <refrain/core/cuda/virtual_memory.cuh>
#include <refrain/core/device.h>

namespace refrain::cuda {

class CudaRange : public detail::AddressRange {
 public:
  explicit CudaRange(int index);
  ~CudaRange() override;

  std::byte* base() const override { return memory_.base(); }
  std::int64_t capacity() const override { return memory_.capacity(); }
  bool commit(std::int64_t end) override;
  void read(std::byte* host, const std::byte* from, std::int64_t bytes) const override;
  void write(std::byte* to, const std::byte* host, std::int64_t bytes) const override;
  void copy(const Shape& shape, int size, std::byte* to, const Strides& to_strides, const std::byte* from,
            const Strides& from_strides) const override;
  void fill(const Shape& shape, int size, std::byte* to, const Strides& strides, std::uint64_t pattern) const override;
  void synchronize() const override;
  // Makes the device the calling thread's, so that what it launches now goes there.
  Cuda cuda() const override;

  // For events and copies: nothing on it is being captured.
  cudaStream_t compute() const {
    graphs_.close();
    return compute_.get();
  }
  cudaStream_t uploads() const { return uploads_.get(); }
  GraphSections& graphs() const { return graphs_; }

 private:
  // What a member's constructor needs: the device's context.
  struct Context {
    explicit Context(int device);
    int index;
  };

  Context context_;
  VirtualMemory memory_;
  Stream compute_, uploads_;
  mutable GraphSections graphs_{compute_.get()};
  FaultReport fault_;
  mutable Staging staging_;
};

}  // namespace refrain::cuda
