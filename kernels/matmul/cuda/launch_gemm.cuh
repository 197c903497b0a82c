// One function a type of operands: each kernel is compiled in a file of its own.
#pragma once

#include <refrain/kernels/matmul/cuda/gemm_task.cuh>

namespace refrain::matmul_kernels {

struct GemmGrid {
  unsigned tiles, pieces, products;
  bool is_large;  // 128 x 128 tiles, else 64 x 64
};

void launch_gemm(std::string_view name, const Cuda& device, const GemmTask<float>& task, const GemmGrid& grid, cuda::half);
void launch_gemm(std::string_view name, const Cuda& device, const GemmTask<float>& task, const GemmGrid& grid, cuda::bfloat);
void launch_gemm(std::string_view name, const Cuda& device, const GemmTask<float>& task, const GemmGrid& grid, float);
void launch_gemm(std::string_view name, const Cuda& device, const GemmTask<double>& task, const GemmGrid& grid, double);

}  // namespace refrain::matmul_kernels
