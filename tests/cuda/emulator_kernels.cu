#include <refrain/core/cuda/platform.cuh>
#include <refrain/tests/cuda/emulator_kernels.h>

namespace refrain {

namespace emulator_test_kernels {

__global__ void __launch_bounds__(1024) reverse(float* out, bool has_barrier) {
  REFRAIN_SHARED(float, values, [1024]);
  values[threadIdx.x] = float(threadIdx.x);
  if (has_barrier) __syncthreads();
  out[threadIdx.x] = values[blockDim.x - 1 - threadIdx.x];
}

}  // namespace emulator_test_kernels

std::vector<float> reverse_through_shared(int threads, bool has_barrier) {
  void* memory = nullptr;
  cuda::check_cuda(cudaMalloc(&memory, 4096), "cudaMalloc");
  std::vector<float> out(static_cast<std::size_t>(threads));
  cuda::launch("reverse", emulator_test_kernels::reverse, {.grid = dim3(1), .block = dim3(unsigned(threads))}, Cuda{}, static_cast<float*>(memory),
               has_barrier);
  cuda::check_cuda(cudaMemcpy(out.data(), memory, out.size() * sizeof(float), cudaMemcpyDeviceToHost), "cudaMemcpy");
  cuda::check_cuda(cudaFree(memory), "cudaFree");
  return out;
}

}  // namespace refrain
