// The driver's functions that the runtime does not offer, looked up by name when a device is first asked for: a binary that
// names them starts on machines without libcuda.so.
#pragma once

#include <refrain/core/cuda/runtime.cuh>

namespace refrain::cuda {

struct Driver {
  CUresult (*mem_get_granularity)(std::size_t*, const CUmemAllocationProp*, CUmemAllocationGranularity_flags);
  CUresult (*mem_reserve)(CUdeviceptr*, std::size_t, std::size_t alignment, CUdeviceptr wish, unsigned long long flags);
  CUresult (*mem_free_reserved)(CUdeviceptr, std::size_t);
  CUresult (*mem_create)(CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long flags);
  CUresult (*mem_release)(CUmemGenericAllocationHandle);
  CUresult (*mem_map)(CUdeviceptr, std::size_t, std::size_t offset, CUmemGenericAllocationHandle, unsigned long long flags);
  CUresult (*mem_unmap)(CUdeviceptr, std::size_t);
  CUresult (*mem_set_access)(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t num);
  CUresult (*device_get_name)(char*, int length, CUdevice);
  CUresult (*get_error_name)(CUresult, const char**);
};

// Throws DeviceUnavailable where the driver lacks one of them.
const Driver& driver();

// Throws CudaError, naming what was tried, unless `result` is success.
void check_driver(CUresult result, std::string_view what);

}  // namespace refrain::cuda
