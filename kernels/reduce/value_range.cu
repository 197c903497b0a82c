// Smallest and largest finite value on CUDA, and how many are not finite. For diagnosis: one block reads all, so that it needs
// no scratch.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/common/cuda/math.cuh>
#include <refrain/kernels/common/cuda/reduce.cuh>
#include <refrain/kernels/common/cuda/strided.cuh>
#include <refrain/kernels/reduce/value_range.h>

namespace refrain {

namespace value_range_kernels {

constexpr int kThreads = 512;

struct Smaller {
  __device__ __forceinline__ double operator()(double a, double b) const { return a < b ? a : b; }
};

template <class X>
__global__ __launch_bounds__(kThreads) void value_range(const X* x, std::int64_t numel, double* out, bool is_packed) {
  constexpr int kPack = 16 / int(sizeof(X));
  using T = cuda::accumulator<X>;
  T least = T(INFINITY), greatest = -T(INFINITY);
  double others = 0;
  for (std::int64_t i = std::int64_t(threadIdx.x) * kPack; i < numel; i += kThreads * kPack) {
    const std::uint32_t count = numel - i < kPack ? std::uint32_t(numel - i) : kPack;
    T values[kPack];
    cuda::load_values(x + i, count, values, is_packed);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      if (std::uint32_t(j) >= count) continue;
      if (cuda::math::is_finite(values[j])) {
        least = values[j] < least ? values[j] : least;
        greatest = values[j] > greatest ? values[j] : greatest;
      } else {
        others += 1;
      }
    }
  }
  REFRAIN_SHARED(double, slots, [3][kThreads / cuda::kWarp]);
  const double all_least = cuda::block_reduce<kThreads, Smaller>(double(least), slots[0]);
  const double all_greatest = cuda::block_reduce<kThreads, cuda::Larger>(double(greatest), slots[1]);
  const double all_others = cuda::block_reduce<kThreads, cuda::Add>(others, slots[2]);
  if (threadIdx.x == 0) out[0] = all_least, out[1] = all_greatest, out[2] = all_others;
}

}  // namespace value_range_kernels

void run(Cuda device, const ValueRange& k) {
  using namespace value_range_kernels;
  if (!k.out.has_bytes() || (k.x.numel() > 0 && !k.x.has_bytes())) return;
  cuda::dispatch_floating(k.x.dtype(), k.name, [&](auto zero) {
    using X = decltype(zero);
    const X* x = cuda::data_of<X>(k.x);
    cuda::launch(k.name, value_range<X>, {.block = kThreads}, device, x, k.x.numel(), k.out.data<double>(),
                 cuda::is_aligned(x, 16));
  });
}

}  // namespace refrain
