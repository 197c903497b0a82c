#include <refrain/core/cuda/backend.h>
#include <refrain/core/cuda/discovery.h>
#include <refrain/core/cuda/driver.cuh>
#include <refrain/core/cuda/handles.cuh>

namespace refrain {

namespace cuda {

namespace {

constexpr int kLeastMajor = 8;  // bf16 products and asynchronous copies into shared memory

std::string version_text(int version) { return concat(version / 1000, '.', version % 1000 / 10); }

std::string no_devices(cudaError_t error) {
  int version = 0;
  const bool has_driver = cudaDriverGetVersion(&version) == cudaSuccess && version > 0;
  switch (error) {
    case cudaErrorNoDevice: return "no NVIDIA GPU is visible";
    case cudaErrorInsufficientDriver:
      if (!has_driver) return "there is no NVIDIA driver";
      return concat("the NVIDIA driver is for CUDA ", version_text(version), ", this build is for ", version_text(CUDART_VERSION));
    default: return concat(cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  }
}

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, which, index), "asking for the device's compute capability");
  return value;
}

std::string name_of_device(int index) {
  char name[256] = "";
  check_driver(driver().device_get_name(name, int(sizeof name), index), "asking for the device's name");
  return name;
}

}  // namespace

std::string problem_of(int index) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // it is told here, and is nobody else's
    return no_devices(error);
  }
  if (count == 0) return no_devices(cudaErrorNoDevice);
  if (index < 0 || index >= count)
    return count == 1 ? "there is one device, 0" : concat("there are ", count, " devices, 0 to ", count - 1);
  const int major = attribute(cudaDevAttrComputeCapabilityMajor, index);
  if (major < kLeastMajor) {
    return concat(name_of_device(index), " has compute capability ", major, '.', attribute(cudaDevAttrComputeCapabilityMinor, index),
                  ", the kernels need ", kLeastMajor, ".0 or newer");
  }
  return {};
}

}  // namespace cuda

CudaMemory cuda_memory(int index) {
  cuda::make_current(index);
  std::size_t free = 0, total = 0;
  cuda::check_cuda(cudaMemGetInfo(&free, &total), "asking for the device's memory");
  return {std::int64_t(free), std::int64_t(total)};
}

std::string cuda_name(int index) {
  return concat(cuda::name_of_device(index), ", compute capability ", cuda::attribute(cudaDevAttrComputeCapabilityMajor, index), '.',
                cuda::attribute(cudaDevAttrComputeCapabilityMinor, index));
}

std::int64_t cuda_pinned_bytes() { return cuda::PinnedMemory::total(); }

namespace detail {

std::string cuda_problem() {
  try {
    return cuda::problem_of(0);
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace detail

}  // namespace refrain
