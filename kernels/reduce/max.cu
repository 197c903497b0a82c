// Maximum along a dim on CUDA, and where it is first met. NaN is larger than everything.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/common/cuda/reduce.cuh>
#include <refrain/kernels/reduce/reduce.h>

namespace refrain {

namespace max_kernels {

constexpr int kThreads = 256;

template <class T>
struct Found {
  T value;
  std::int64_t at;
};

// The larger of two, the earlier of equals.
template <class T>
__device__ __forceinline__ Found<T> better(Found<T> a, Found<T> b) {
  const bool is_a_nan = a.value != a.value, is_b_nan = b.value != b.value;
  const bool is_tie = a.value == b.value || (is_a_nan && is_b_nan);
  const bool takes_b = is_tie ? b.at < a.at : is_b_nan || b.value > a.value;
  return takes_b ? b : a;
}

template <class T>
__device__ __forceinline__ Found<T> best_of_warp(Found<T> mine) {
#pragma unroll
  for (int distance = cuda::kWarp / 2; distance > 0; distance /= 2) {
    const Found<T> other{__shfl_xor_sync(cuda::kAllLanes, mine.value, distance),
                         __shfl_xor_sync(cuda::kAllLanes, mine.at, distance)};
    mine = better(mine, other);
  }
  return mine;
}

// Rows of neighbours, a warp or a block each. `out` or `indices` may be null.
template <class X, int kGroup, class T = cuda::accumulator<X>>
__global__ __launch_bounds__(kThreads) void max_of_rows(const X* x, std::int64_t rows, std::int64_t extent, X* out,
                                                        std::int64_t* indices) {
  const int lane = int(threadIdx.x) % kGroup;
  const std::int64_t row = std::int64_t(blockIdx.x) * (kThreads / kGroup) + threadIdx.x / kGroup;
  if (kGroup < kThreads && row >= rows) return;
  const X* line = x + row * extent;
  // Lanes without elements of their own start with the first.
  const std::int64_t start = lane < extent ? lane : 0;
  Found<T> best{cuda::widen(line[start]), start};
  for (std::int64_t i = lane + kGroup; i < extent; i += kGroup) best = better(best, {cuda::widen(line[i]), i});
  best = best_of_warp(best);
  if constexpr (kGroup > cuda::kWarp) {
    constexpr int kWarps = kThreads / cuda::kWarp;
    REFRAIN_SHARED(T, values, [kWarps]);
    REFRAIN_SHARED(std::int64_t, places, [kWarps]);
    if (lane % cuda::kWarp == 0) values[lane / cuda::kWarp] = best.value, places[lane / cuda::kWarp] = best.at;
    __syncthreads();
    best = {values[0], places[0]};
    for (int warp = 1; warp < kWarps; ++warp) best = better(best, {values[warp], places[warp]});
  }
  if (lane != 0) return;
  if (out != nullptr) out[row] = line[best.at];
  if (indices != nullptr) indices[row] = best.at;
}

// Columns `inner` elements apart, a thread each.
template <class X, class T = cuda::accumulator<X>>
__global__ __launch_bounds__(kThreads) void max_of_columns(const X* x, std::int64_t numel, std::int64_t extent,
                                                           std::int64_t inner, X* out, std::int64_t* indices) {
  const std::int64_t i = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= numel) return;
  const std::int64_t outer = i / inner;
  const X* line = x + outer * extent * inner + (i - outer * inner);
  Found<T> best{cuda::widen(line[0]), 0};
#pragma unroll 4
  for (std::int64_t j = 1; j < extent; ++j) best = better(best, {cuda::widen(line[j * inner]), j});
  if (out != nullptr) out[i] = line[best.at * inner];
  if (indices != nullptr) indices[i] = best.at;
}

// Every element of the result is written once: the gradient where it is the one that was found, else 0.
template <class U>
__global__ __launch_bounds__(kThreads) void max_backward(const U* grad_out, const std::int64_t* indices, std::int64_t numel,
                                                         std::int64_t extent, std::int64_t inner, U* out) {
  const std::int64_t i = std::int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= numel) return;
  const std::int64_t line = i / inner, column = i - line * inner, outer = line / extent;
  const std::int64_t from = outer * inner + column;
  out[i] = indices[from] == line - outer * extent ? grad_out[from] : U(0);
}

// x seen as [outer, extent, inner] around the dim.
struct Around {
  std::int64_t outer = 1, extent, inner = 1;
  Around(const Shape& shape, int dim) : extent(shape[dim]) {
    for (int i = 0; i < dim; ++i) outer *= shape[i];
    for (int i = dim + 1; i < shape.size(); ++i) inner *= shape[i];
  }
};

template <class U>
void run_backward(const Cuda& device, const MaxBackward& k) {
  const Around around(k.out.shape(), k.dim);
  const dim3 grid(unsigned(cuda::ceil_div(k.out.numel(), kThreads)));
  cuda::launch(k.name, max_backward<U>, {.grid = grid, .block = kThreads}, device, cuda::data_of<U>(k.grad_out),
               k.indices.data<std::int64_t>(), k.out.numel(), around.extent, around.inner, cuda::data_of<U>(k.out));
}

}  // namespace max_kernels

void run(Cuda device, const Max& k) {
  using namespace max_kernels;
  if ((!k.out.has_bytes() && !k.indices.has_bytes()) || k.out.numel() == 0) return;
  const Around around(k.x.shape(), k.dim);
  const std::int64_t numel = k.out.numel();
  std::int64_t* indices = k.indices.has_bytes() ? k.indices.data<std::int64_t>() : nullptr;
  cuda::dispatch_floating(k.x.dtype(), k.name, [&](auto zero) {
    using X = decltype(zero);
    const X* x = cuda::data_of<X>(k.x);
    X* out = cuda::data_of<X>(k.out);  // null where a replay wants the indices alone
    constexpr std::int64_t kMostOfWarp = 1024;
    const auto blocks = [](std::int64_t items, int per_block) { return dim3(unsigned(cuda::ceil_div(items, per_block))); };
    if (around.inner > 1)
      cuda::launch(k.name, max_of_columns<X>, {.grid = blocks(numel, kThreads), .block = kThreads}, device, x, numel,
                   around.extent, around.inner, out, indices);
    else if (around.extent <= kMostOfWarp)
      cuda::launch(k.name, max_of_rows<X, cuda::kWarp>, {.grid = blocks(numel, kThreads / cuda::kWarp), .block = kThreads},
                   device, x, numel, around.extent, out, indices);
    else
      cuda::launch(k.name, max_of_rows<X, kThreads>, {.grid = blocks(numel, 1), .block = kThreads}, device, x, numel,
                   around.extent, out, indices);
  });
}

void run(Cuda device, const MaxBackward& k) {
  using namespace max_kernels;
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  switch (size_of(k.out.dtype())) {
    case 8: return run_backward<std::uint64_t>(device, k);
    case 4: return run_backward<std::uint32_t>(device, k);
    default: return run_backward<std::uint16_t>(device, k);
  }
}

}  // namespace refrain
