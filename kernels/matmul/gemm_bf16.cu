// Products of bf16 matrices on tensor cores.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/matmul/cuda/launch_gemm.cuh>
#include <refrain/kernels/matmul/cuda/tensor_core_gemm.cuh>

namespace refrain::matmul_kernels {

void launch_gemm(std::string_view name, const Cuda& device, const GemmTask<float>& task, const GemmGrid& grid, cuda::bfloat) {
  launch_tensor_core_gemm<cuda::bfloat>(name, device, task, dim3(grid.tiles, grid.pieces, grid.products), grid.is_large);
}

}  // namespace refrain::matmul_kernels
