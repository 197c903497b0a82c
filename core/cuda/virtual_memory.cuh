// One long range of device addresses, backed by device memory from its start on as far as it is used. The addresses never
// change, so an arena can grow without moving a tensor.
#pragma once

#include <refrain/core/cuda/runtime.cuh>

#include <cstddef>
#include <vector>

namespace refrain::cuda {

class VirtualMemory {
 public:
  // Room for twice the device's memory, holes included; less where the system has not that many addresses.
  explicit VirtualMemory(int device);
  ~VirtualMemory();
  VirtualMemory(const VirtualMemory&) = delete;
  VirtualMemory& operator=(const VirtualMemory&) = delete;

  std::byte* base() const { return reinterpret_cast<std::byte*>(base_); }
  std::int64_t capacity() const { return capacity_; }
  // Backs everything below `end`. False, and nothing is changed, where the device has no memory for it.
  bool commit(std::int64_t end);

 private:
  bool add(std::int64_t bytes);

  CUmemAllocationProp properties_{};
  std::int64_t granularity_ = 0, capacity_ = 0, committed_ = 0;
  CUdeviceptr base_ = 0;
  std::vector<std::int64_t> mapped_;  // sizes of the pieces, in the order of their addresses
};

}  // namespace refrain::cuda
