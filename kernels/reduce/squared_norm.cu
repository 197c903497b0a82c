// Σ x² in double on CUDA: a block of threads a block of 8192 elements, then one block over their sums. One fixed order.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/common/cuda/reduce.cuh>
#include <refrain/kernels/common/cuda/strided.cuh>
#include <refrain/kernels/reduce/reduce.h>

namespace refrain {

namespace squared_norm_kernels {

constexpr int kThreads = 256;
constexpr std::int64_t kBlock = 8192;

template <class X>
__global__ __launch_bounds__(kThreads) void square_blocks(const X* x, std::int64_t numel, double* partial, bool is_packed) {
  constexpr int kPack = 16 / int(sizeof(X));
  const std::int64_t first = std::int64_t(blockIdx.x) * kBlock, end = numel - first < kBlock ? numel : first + kBlock;
  double sum = 0;
#pragma unroll 2
  for (std::int64_t i = first + std::int64_t(threadIdx.x) * kPack; i < end; i += kThreads * kPack) {
    const std::uint32_t count = end - i < kPack ? std::uint32_t(end - i) : kPack;
    cuda::accumulator<X> values[kPack];
    cuda::load_values(x + i, count, values, is_packed);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const double value = std::uint32_t(j) < count ? double(values[j]) : 0.0;
      sum = __fma_rn(value, value, sum);
    }
  }
  REFRAIN_SHARED(double, slots, [kThreads / cuda::kWarp]);
  sum = cuda::block_reduce<kThreads, cuda::Add>(sum, slots);
  if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

__global__ __launch_bounds__(kThreads) void add_blocks(const double* partial, std::int64_t count, double* out) {
  double sum = 0;
#pragma unroll 4
  for (std::int64_t i = threadIdx.x; i < count; i += kThreads) sum += partial[i];
  REFRAIN_SHARED(double, slots, [kThreads / cuda::kWarp]);
  sum = cuda::block_reduce<kThreads, cuda::Add>(sum, slots);
  if (threadIdx.x == 0) *out = sum;
}

}  // namespace squared_norm_kernels

void run(Cuda device, const SquaredNorm& k) {
  using namespace squared_norm_kernels;
  if (!k.out.has_bytes()) return;
  const std::int64_t blocks = squared_norm_scratch_numel(k.x.numel());
  invariant(blocks == std::max<std::int64_t>(1, cuda::ceil_div(k.x.numel(), kBlock)),
            "squared_norm: scratch has another block size");
  double* partial = k.scratch.data<double>();
  cuda::dispatch_floating(k.x.dtype(), k.name, [&](auto zero) {
    using X = decltype(zero);
    const X* x = cuda::data_of<X>(k.x);
    cuda::launch(k.name, square_blocks<X>, {.grid = dim3(unsigned(blocks)), .block = kThreads}, device, x, k.x.numel(), partial,
                 cuda::is_aligned(x, 16));
  });
  cuda::launch(k.name, add_blocks, {.block = kThreads}, device, partial, blocks, k.out.data<double>());
}

}  // namespace refrain
