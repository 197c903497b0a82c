#include <refrain/core/cuda/driver.cuh>
#include <refrain/core/cuda/virtual_memory.cuh>

#include <algorithm>

namespace refrain::cuda {

namespace {

std::int64_t round_up(std::int64_t bytes, std::int64_t unit) { return (bytes + unit - 1) / unit * unit; }

// A piece costs the driver about as much whatever its size; one of a share of what is there already keeps their number small
// and what is backed but not used below 2 %.
constexpr std::int64_t kShare = 64;

}  // namespace

VirtualMemory::VirtualMemory(int device) {
  properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties_.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties_.location.id = device;
  std::size_t granularity = 0, free = 0, total = 0;
  check_driver(driver().mem_get_granularity(&granularity, &properties_, CU_MEM_ALLOC_GRANULARITY_MINIMUM),
               "asking for the size of device pages");
  granularity_ = std::int64_t(granularity);
  check_cuda(cudaMemGetInfo(&free, &total), "asking for the device's memory");
  CUresult result = CUDA_SUCCESS;
  for (capacity_ = round_up(2 * std::int64_t(total), granularity_); capacity_ >= granularity_;
       capacity_ = capacity_ / 2 / granularity_ * granularity_) {
    result = driver().mem_reserve(&base_, std::size_t(capacity_), 0, 0, 0);
    if (result == CUDA_SUCCESS) return;
  }
  check_driver(result, "reserving device addresses");
}

VirtualMemory::~VirtualMemory() {
  CUdeviceptr at = base_;
  for (const std::int64_t bytes : mapped_) {
    static_cast<void>(driver().mem_unmap(at, std::size_t(bytes)));
    at += CUdeviceptr(bytes);
  }
  static_cast<void>(driver().mem_free_reserved(base_, std::size_t(capacity_)));
}

bool VirtualMemory::commit(std::int64_t end) {
  if (end <= committed_) return true;
  if (end > capacity_) return false;
  const std::int64_t needed = round_up(end - committed_, granularity_);
  const std::int64_t wanted = std::min(std::max(needed, round_up(committed_ / kShare, granularity_)), capacity_ - committed_);
  return add(wanted) || (wanted > needed && add(needed));
}

bool VirtualMemory::add(std::int64_t bytes) {
  CUmemGenericAllocationHandle handle{};
  const CUresult created = driver().mem_create(&handle, std::size_t(bytes), &properties_, 0);
  if (created == CUDA_ERROR_OUT_OF_MEMORY) return false;
  check_driver(created, "taking device memory");
  const CUdeviceptr at = base_ + CUdeviceptr(committed_);
  const CUresult mapped = driver().mem_map(at, std::size_t(bytes), 0, handle, 0);
  // The mapping keeps the memory until it is undone.
  static_cast<void>(driver().mem_release(handle));
  if (mapped == CUDA_ERROR_OUT_OF_MEMORY) return false;
  check_driver(mapped, "mapping device memory");
  CUmemAccessDesc access{};
  access.location = properties_.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  const CUresult allowed = driver().mem_set_access(at, std::size_t(bytes), &access, 1);
  if (allowed != CUDA_SUCCESS) static_cast<void>(driver().mem_unmap(at, std::size_t(bytes)));
  if (allowed == CUDA_ERROR_OUT_OF_MEMORY) return false;
  check_driver(allowed, "allowing access to device memory");
  mapped_.push_back(bytes);
  committed_ += bytes;
  return true;
}

}  // namespace refrain::cuda
