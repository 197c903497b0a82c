// Dropout on CUDA: four neighbours a thread, whose words are one Philox block where the stream begins with one.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/common/cuda/random.cuh>
#include <refrain/kernels/common/cuda/strided.cuh>
#include <refrain/kernels/dropout/dropout.h>

namespace refrain {

namespace dropout_kernels {

using cuda::MapOperand;

constexpr int kThreads = 256, kEach = 4;

template <class T>
struct DropoutArguments {
  std::int64_t numel;
  MapOperand x, residual, out;  // residual: null for none
  cuda::RandomStream words;
  std::uint64_t first_element;
  std::uint32_t threshold;
  bool drops_all, is_packed;
  T scale;
};

template <class T, class S>
__device__ __forceinline__ void load_each(const MapOperand& from, std::int64_t i, std::uint32_t count, bool is_packed,
                                          T (&to)[kEach]) {
  if (std::is_same_v<T, S> || from.is_wide)
    cuda::load_values(static_cast<const T*>(from.address) + i, count, to, is_packed);
  else
    cuda::load_values(static_cast<const S*>(from.address) + i, count, to, is_packed);
}

template <class T, class S>
__global__ __launch_bounds__(kThreads) void dropout(DropoutArguments<T> k) {
  const std::int64_t i = (std::int64_t(blockIdx.x) * kThreads + threadIdx.x) * kEach;
  if (i >= k.numel) return;
  const std::uint32_t count = k.numel - i < kEach ? std::uint32_t(k.numel - i) : kEach;
  T kept[kEach] = {};  // where all is dropped x is not read: infinite x times 0 would be NaN
  if (!k.drops_all) {
    std::uint32_t words[kEach];
    k.words.words(k.first_element + std::uint64_t(i), words);
    load_each<T, S>(k.x, i, count, k.is_packed, kept);
#pragma unroll
    for (int j = 0; j < kEach; ++j) kept[j] = words[j] >= k.threshold ? kept[j] * k.scale : T(0);
  }
  if (k.residual.address != nullptr) {
    T residual[kEach];
    load_each<T, S>(k.residual, i, count, k.is_packed, residual);
#pragma unroll
    for (int j = 0; j < kEach; ++j) kept[j] = residual[j] + kept[j];
  }
  if (std::is_same_v<T, S> || k.out.is_wide)
    cuda::store_values(static_cast<T*>(k.out.address) + i, count, kept, k.is_packed);
  else
    cuda::store_values(static_cast<S*>(k.out.address) + i, count, kept, k.is_packed);
}

struct SampleArguments {
  std::int64_t per_sample;
  std::uint32_t blocks_per_sample, threshold;
  cuda::RandomStream words;
  std::uint64_t first_sample;
  bool drops_all, is_packed;
};

// A block has part of one sample, so its word is one.
template <class T, class S>
__global__ __launch_bounds__(kThreads) void stochastic_depth(SampleArguments k, S* out, const S* x, T scale) {
  const std::uint32_t sample = blockIdx.x / k.blocks_per_sample, part = blockIdx.x % k.blocks_per_sample;
  const std::int64_t i = (std::int64_t(part) * kThreads + threadIdx.x) * kEach, left = k.per_sample - i;
  if (left <= 0) return;
  const std::uint32_t count = left < kEach ? std::uint32_t(left) : kEach;
  const std::int64_t at = sample * k.per_sample + i;
  T values[kEach] = {};
  if (!k.drops_all && k.words.word(k.first_sample + sample) >= k.threshold) {
    cuda::load_values(x + at, count, values, k.is_packed);
#pragma unroll
    for (int j = 0; j < kEach; ++j) values[j] *= scale;
  }
  cuda::store_values(out + at, count, values, k.is_packed);
}

template <class Arg>
bool takes_packs(const Arg& arg) {
  return cuda::is_aligned(arg.address(), std::min<std::size_t>(16, kEach * size_of(arg.dtype())));
}

}  // namespace dropout_kernels

void run(Cuda device, const Dropout& k) {
  using namespace dropout_kernels;
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  const bool has_residual = k.residual.defined(), drops_all = k.p == 1;
  const DType third = has_residual ? k.residual.dtype() : k.x.dtype();
  cuda::dispatch_mixed({k.x.dtype(), k.out.dtype(), third}, [&](auto arithmetic, auto storage) {
    using T = decltype(arithmetic);
    const auto operand = [](const auto& arg) {
      return MapOperand{const_cast<std::byte*>(static_cast<const std::byte*>(arg.address())), size_of(arg.dtype()) == sizeof(T),
                        false};
    };
    const bool is_packed = takes_packs(k.x) && takes_packs(k.out) && (!has_residual || takes_packs(k.residual));
    const DropoutArguments<T> arguments{k.out.numel(),
                                        operand(k.x),
                                        has_residual ? operand(k.residual) : MapOperand{},
                                        operand(k.out),
                                        cuda::RandomStream(k.key),
                                        std::uint64_t(k.first_element),
                                        drops_all ? 0 : drop_threshold(k.p),
                                        drops_all,
                                        is_packed,
                                        drops_all ? T(0) : T(1 / (1 - k.p))};
    const dim3 grid(unsigned(cuda::ceil_div(k.out.numel(), kThreads * kEach)));
    cuda::launch(k.name, dropout<T, decltype(storage)>, {.grid = grid, .block = kThreads}, device, arguments);
  });
}

void run(Cuda device, const StochasticDepth& k) {
  using namespace dropout_kernels;
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  cuda::dispatch_mixed({k.x.dtype()}, [&](auto arithmetic, auto storage) {
    using T = decltype(arithmetic);
    using S = decltype(storage);
    const std::int64_t per_sample = k.x.numel() / k.x.dim(0), blocks = cuda::ceil_div(per_sample, kThreads * kEach);
    const SampleArguments arguments{per_sample,
                                    std::uint32_t(blocks),
                                    k.p < 1 ? drop_threshold(k.p) : 0,
                                    cuda::RandomStream(k.key),
                                    std::uint64_t(k.first_sample),
                                    k.p == 1,
                                    takes_packs(k.x) && takes_packs(k.out) && per_sample % kEach == 0};
    cuda::launch(k.name, stochastic_depth<T, S>, {.grid = dim3(unsigned(blocks * k.x.dim(0))), .block = kThreads}, device,
                 arguments, cuda::data_of<S>(k.out), cuda::data_of<S>(k.x), k.p < 1 ? T(1 / (1 - k.p)) : T(0));
  });
}

}  // namespace refrain
