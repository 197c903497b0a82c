// Included first by every .cu file. One of two worlds: nvcc, or a C++ compiler and the host emulator (kernels/emulator), where
// REFRAIN_EMULATED is defined. Device code uses REFRAIN_SHARED, REFRAIN_DYNAMIC_SHARED and cuda::launch() instead of
// __shared__ and <<<>>>, and no inline PTX outside kernels/common/cuda/intrinsics.cuh.
#pragma once

#if defined(REFRAIN_EMULATED)
#include <refrain/kernels/emulator/device.h>
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
// A block's array in static shared memory: REFRAIN_SHARED(float, tile, [32][33]);
#define REFRAIN_SHARED(T, name, dims) __shared__ T name dims
// The start of the block's dynamic shared memory, aligned to 128 bytes; one a kernel.
#define REFRAIN_DYNAMIC_SHARED(T, name)                                  \
  extern __shared__ __align__(128) unsigned char refrain_dynamic_shared_[]; \
  T* name = reinterpret_cast<T*>(refrain_dynamic_shared_)
#endif

#include <refrain/core/check.h>
#include <refrain/core/stream.h>

#include <cstdint>
#include <string_view>
#include <tuple>
#include <utility>

namespace refrain::cuda {

// Throws CudaError, naming what was tried, unless `error` is success.
inline void check_cuda(cudaError_t error, std::string_view what) {
  if (error != cudaSuccess) [[unlikely]] fail<CudaError>(what, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
}

struct LaunchShape {
  dim3 grid{1}, block{1};
  std::size_t shared_bytes = 0;  // dynamic
};

// Launches a __global__ function on the device's stream and checks that it was accepted. `name` is the kernel's in messages.
// A grid with an extent of 0 has nothing to do.
template <class... Parameters, class... Arguments>
void launch(std::string_view name, void (*kernel)(Parameters...), const LaunchShape& shape, const Cuda& device, Arguments&&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  const auto stream = static_cast<cudaStream_t>(device.stream);
  // Converted to the kernel's parameter types once, as a call would.
  std::tuple<std::decay_t<Parameters>...> values(static_cast<std::decay_t<Parameters>>(std::forward<Arguments>(arguments))...);
#if defined(REFRAIN_EMULATED)
  const emulator::Kernel which{name, reinterpret_cast<const void*>(kernel)};
  check_cuda(emulator::launch(which, shape.grid, shape.block, shape.shared_bytes, stream, [kernel, values] { std::apply(kernel, values); }), name);
#else
  const auto function = reinterpret_cast<const void*>(kernel);
  constexpr std::size_t kGivenWithoutAsking = 48 << 10;
  if (shape.shared_bytes > kGivenWithoutAsking)
    check_cuda(cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shape.shared_bytes)), name);
  const cudaError_t error = std::apply(
      [&](auto&... each) {
        void* pointers[] = {static_cast<void*>(&each)..., nullptr};
        return cudaLaunchKernel(function, shape.grid, shape.block, pointers, shape.shared_bytes, stream);
      },
      values);
  check_cuda(error, name);
#endif
}

}  // namespace refrain::cuda
