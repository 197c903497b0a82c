#include <refrain/core/cuda/driver.cuh>

namespace refrain::cuda {

namespace {

template <class F>
void look_up(F*& function, const char* name) {
  constexpr unsigned kSince = 10020;  // CUDA 10.2 brought all of them
  void* found = nullptr;
  cudaDriverEntryPointQueryResult status{};
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, kSince, cudaEnableDefault, &status);
#else
  static_cast<void>(kSince);
  const cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &status);
#endif
  check<DeviceUnavailable>(error == cudaSuccess && status == cudaDriverEntryPointSuccess && found != nullptr,
                           "the NVIDIA driver has no ", name, ": it is too old");
  function = reinterpret_cast<F*>(found);
}

Driver look_up_all() {
  Driver driver{};
  look_up(driver.mem_get_granularity, "cuMemGetAllocationGranularity");
  look_up(driver.mem_reserve, "cuMemAddressReserve");
  look_up(driver.mem_free_reserved, "cuMemAddressFree");
  look_up(driver.mem_create, "cuMemCreate");
  look_up(driver.mem_release, "cuMemRelease");
  look_up(driver.mem_map, "cuMemMap");
  look_up(driver.mem_unmap, "cuMemUnmap");
  look_up(driver.mem_set_access, "cuMemSetAccess");
  look_up(driver.device_get_name, "cuDeviceGetName");
  look_up(driver.get_error_name, "cuGetErrorName");
  return driver;
}

}  // namespace

const Driver& driver() {
  static const Driver driver = look_up_all();  // tried again where it threw
  return driver;
}

void check_driver(CUresult result, std::string_view what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  const bool is_known = driver().get_error_name(result, &name) == CUDA_SUCCESS && name != nullptr;
  fail<CudaError>(what, ": ", is_known ? name : "unknown error", " (", int(result), ")");
}

}  // namespace refrain::cuda
