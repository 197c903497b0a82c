// The fake CUDA runtime: two devices of compute capability 9.0, kernels' attributes.
#include <refrain/kernels/emulator/device_memory.h>
#include <refrain/kernels/emulator/options.h>
#include <refrain/kernels/emulator/queue.h>
#include <refrain/kernels/emulator/runtime.h>

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

using namespace refrain::emulator;

namespace {

thread_local int current_device = 0;

// REFRAIN_EMULATOR_DEVICES: how many there are; with 0 the runtime says so, as on a machine without.
int num_devices() {
  const char* number = std::getenv("REFRAIN_EMULATOR_DEVICES");
  return number != nullptr ? std::atoi(number) : 2;
}
bool exists(int device) { return device >= 0 && device < num_devices(); }

constexpr int kMajor = 9, kMinor = 0, kMultiprocessors = 2;

}  // namespace

extern "C" {

cudaError_t cudaDriverGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = num_devices();
  return *count > 0 ? cudaSuccess : note_error(cudaErrorNoDevice);
}
cudaError_t cudaSetDevice(int device) {
  if (!exists(device)) return note_error(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  return is_capturing(nullptr) ? note_error(cudaErrorStreamCaptureUnsupported) : guarded([] { drain_all(); });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (!exists(device)) return note_error(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = kMajor; break;
    case cudaDevAttrComputeCapabilityMinor: *value = kMinor; break;
    case cudaDevAttrMultiProcessorCount: *value = kMultiprocessors; break;
    case cudaDevAttrWarpSize: *value = 32; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = 48 << 10; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = int(options().max_shared_bytes); break;
    case cudaDevAttrCanMapHostMemory: *value = 1; break;
    default: return note_error(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (!exists(device)) return note_error(cudaErrorInvalidDevice);
  std::memset(static_cast<void*>(properties), 0, sizeof *properties);
  std::strcpy(properties->name, "Refrain emulator");
  properties->totalGlobalMem = options().device_bytes;
  properties->major = kMajor;
  properties->minor = kMinor;
  properties->multiProcessorCount = kMultiprocessors;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  properties->sharedMemPerBlock = 48 << 10;
  properties->sharedMemPerBlockOptin = options().max_shared_bytes;
  properties->canMapHostMemory = 1;
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = free_device_bytes();
  *total = options().device_bytes;
  return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute attribute, int value) {
  const bool fits = attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || std::size_t(value) <= options().max_shared_bytes;
  return note_error(fits ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  std::memset(static_cast<void*>(attributes), 0, sizeof *attributes);
  attributes->maxThreadsPerBlock = 1024;
  attributes->maxDynamicSharedSizeBytes = int(options().max_shared_bytes);
  return cudaSuccess;
}

}
