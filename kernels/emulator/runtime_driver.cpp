// The fake CUDA driver: the entry points that are looked up by name.
#include <refrain/kernels/emulator/device_memory.h>
#include <refrain/kernels/emulator/queue.h>
#include <refrain/kernels/emulator/runtime.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string_view>

using namespace refrain::emulator;

namespace {

struct Handles {
  std::mutex mutex;
  std::map<CUmemGenericAllocationHandle, std::size_t> bytes;
  CUmemGenericAllocationHandle next = 1;
};
Handles& handles() {
  static Handles* all = new Handles;
  return *all;
}

CUresult granularity(std::size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = kDevicePage;
  return CUDA_SUCCESS;
}
CUresult reserve(CUdeviceptr* address, std::size_t bytes, std::size_t, CUdeviceptr, unsigned long long) {
  if (bytes == 0 || bytes % kDevicePage != 0) return CUDA_ERROR_INVALID_VALUE;
  *address = reinterpret_cast<CUdeviceptr>(reserve_addresses(bytes));
  return *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
CUresult free_reserved(CUdeviceptr address, std::size_t bytes) {
  return free_addresses(reinterpret_cast<char*>(address), bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult create(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp*, unsigned long long) {
  if (bytes == 0 || bytes % kDevicePage != 0) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > free_device_bytes()) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::lock_guard lock(handles().mutex);
  *handle = handles().next++;
  handles().bytes[*handle] = bytes;
  return CUDA_SUCCESS;
}
CUresult release(CUmemGenericAllocationHandle handle) {
  const std::lock_guard lock(handles().mutex);
  return handles().bytes.erase(handle) > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult map(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle, unsigned long long) {
  const std::lock_guard lock(handles().mutex);
  const auto memory = handles().bytes.find(handle);
  if (memory == handles().bytes.end() || offset != 0 || memory->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  return map_memory(reinterpret_cast<char*>(address), bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
// Work that is queued may use the memory: a driver does not wait for it either, and what it does then is undefined.
CUresult unmap(CUdeviceptr address, std::size_t bytes) {
  return unmap_memory(reinterpret_cast<char*>(address), bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult set_access(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc*, std::size_t) {
  return is_device_memory(reinterpret_cast<void*>(address), bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
CUresult device_name(char* name, int length, CUdevice) {
  std::strncpy(name, "Refrain emulator", std::size_t(length));
  return CUDA_SUCCESS;
}
CUresult error_name(CUresult result, const char** name) {
  switch (result) {
    case CUDA_SUCCESS: *name = "CUDA_SUCCESS"; break;
    case CUDA_ERROR_INVALID_VALUE: *name = "CUDA_ERROR_INVALID_VALUE"; break;
    case CUDA_ERROR_OUT_OF_MEMORY: *name = "CUDA_ERROR_OUT_OF_MEMORY"; break;
    default: *name = nullptr; return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}
CUresult mem_get_info(std::size_t* free, std::size_t* total) {
  return cudaMemGetInfo(free, total) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

template <class R, class... P>
void* pointer(R (*function)(P...)) { return reinterpret_cast<void*>(function); }

void* entry_point(std::string_view name) {
  static const std::map<std::string_view, void*> known = {
      {"cuMemGetAllocationGranularity", pointer(granularity)}, {"cuMemAddressReserve", pointer(reserve)},
      {"cuMemAddressFree", pointer(free_reserved)}, {"cuMemCreate", pointer(create)}, {"cuMemRelease", pointer(release)},
      {"cuMemMap", pointer(map)}, {"cuMemUnmap", pointer(unmap)}, {"cuMemSetAccess", pointer(set_access)},
      {"cuDeviceGetName", pointer(device_name)}, {"cuGetErrorName", pointer(error_name)}, {"cuMemGetInfo", pointer(mem_get_info)}};
  const auto found = known.find(name);
  return found != known.end() ? found->second : nullptr;
}

cudaError_t look_up(const char* name, void** function, cudaDriverEntryPointQueryResult* status) {
  *function = entry_point(name);
  if (status != nullptr) *status = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return *function != nullptr || status != nullptr ? cudaSuccess : note_error(cudaErrorInvalidValue);
}

}  // namespace

extern "C" {

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long, cudaDriverEntryPointQueryResult* status) {
  return look_up(name, function, status);
}
#if CUDART_VERSION < 13000
cudaError_t cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long, cudaDriverEntryPointQueryResult* status) {
  return look_up(name, function, status);
}
#endif

}
