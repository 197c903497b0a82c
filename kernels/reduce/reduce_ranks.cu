// Ranks' parts combined in rank order on CUDA, with the CPU's bits: a thread an element, or a pack of neighbours.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/common/cuda/math.cuh>
#include <refrain/kernels/common/cuda/types.cuh>
#include <refrain/kernels/reduce/reduce_ranks.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace refrain {

namespace reduce_ranks_kernels {

constexpr int kThreads = 256;

// What T is added in. Integers have no sign here: they wrap alike.
template <class T>
struct SumOf {
  using type = cuda::accumulator<T>;
};
template <>
struct SumOf<std::int64_t> {
  using type = std::uint64_t;
};
template <>
struct SumOf<std::int32_t> {
  using type = std::uint32_t;
};
template <>
struct SumOf<std::uint8_t> {
  using type = std::uint8_t;
};
template <class T>
using Sum = typename SumOf<T>::type;

template <class T>
__device__ __forceinline__ Sum<T> widen(T value) {
  if constexpr (std::is_integral_v<T>)
    return Sum<T>(value);
  else
    return cuda::widen(value);
}

template <class T>
__device__ __forceinline__ Sum<T> added(Sum<T> a, Sum<T> b) {
  if constexpr (std::is_integral_v<T>)
    return Sum<T>(a + b);
  else
    return cuda::math::flushed(cuda::math::flushed(a) + cuda::math::flushed(b));
}

// A NaN stays; of a subnormal number the comparison sees 0, as on the CPU.
template <class T>
__device__ __forceinline__ Sum<T> larger(Sum<T> a, Sum<T> b) {
  if constexpr (std::is_integral_v<T>)
    return T(a) > T(b) ? a : b;
  else
    return cuda::math::flushed(b) > cuda::math::flushed(a) || b != b ? b : a;
}

template <class T>
struct Parts {
  const T* own;
  const T* others;  // null where there are none
  std::int64_t row;  // from one of the others to the next
  int num_ranks, rank;

  __device__ __forceinline__ const T* of(int r) const { return r == rank ? own : others + (r < rank ? r : r - 1) * row; }
};

template <class T, int kBytes, ReduceOp op>
__global__ __launch_bounds__(kThreads) void reduce_ranks(Parts<T> parts, std::int64_t num_packs, T* out) {
  using Pack = cuda::Pack<T, kBytes>;
  const std::int64_t step = std::int64_t(gridDim.x) * kThreads;
  for (std::int64_t i = std::int64_t(blockIdx.x) * kThreads + threadIdx.x; i < num_packs; i += step) {
    const std::int64_t at = i * Pack::kSize;
    Sum<T> sums[Pack::kSize];
    Pack pack = cuda::load_pack<T, kBytes>(parts.of(0) + at);
#pragma unroll
    for (int j = 0; j < Pack::kSize; ++j) sums[j] = widen(pack[j]);
#pragma unroll(sizeof(T) > 1 ? 4 : 1)  // sixteen bytes a pack would not stay in registers
    for (int r = 1; r < parts.num_ranks; ++r) {
      pack = cuda::load_pack<T, kBytes>(parts.of(r) + at);
#pragma unroll
      for (int j = 0; j < Pack::kSize; ++j)
        sums[j] = op == ReduceOp::max ? larger<T>(sums[j], widen(pack[j])) : added<T>(sums[j], widen(pack[j]));
    }
#pragma unroll
    for (int j = 0; j < Pack::kSize; ++j) {
      if constexpr (std::is_integral_v<T>) {
        pack[j] = T(sums[j]);
      } else {
        if constexpr (op == ReduceOp::mean)
          sums[j] = cuda::math::flushed(cuda::math::divide(cuda::math::flushed(sums[j]), Sum<T>(parts.num_ranks)));
        pack[j] = cuda::narrow<T>(sums[j]);
      }
    }
    cuda::store_pack(out + at, pack);
  }
}

template <class T, int kBytes>
void launch(const Cuda& device, const ReduceRanks& k, const Parts<T>& parts, std::int64_t begin, std::int64_t count) {
  constexpr std::int64_t kMostBlocks = 1024;
  if (count == 0) return;
  Parts<T> from = parts;
  from.own += begin;
  if (from.others != nullptr) from.others += begin;
  const std::int64_t num_packs = count / cuda::Pack<T, kBytes>::kSize;
  const cuda::LaunchShape shape{.grid = dim3(unsigned(std::min(cuda::ceil_div(num_packs, kThreads), kMostBlocks))), .block = kThreads};
  T* out = cuda::data_of<T>(k.out) + begin;
  switch (k.op) {
    case ReduceOp::sum: return cuda::launch(k.name, reduce_ranks<T, kBytes, ReduceOp::sum>, shape, device, from, num_packs, out);
    case ReduceOp::max: return cuda::launch(k.name, reduce_ranks<T, kBytes, ReduceOp::max>, shape, device, from, num_packs, out);
    case ReduceOp::mean:
      if constexpr (!std::is_integral_v<T>)
        return cuda::launch(k.name, reduce_ranks<T, kBytes, ReduceOp::mean>, shape, device, from, num_packs, out);
  }
}

template <class T>
void run(const Cuda& device, const ReduceRanks& k) {
  constexpr int kPack = 16;
  const std::int64_t row = k.others.strides()[0], count = k.out.numel();
  const Parts<T> parts{.own = cuda::data_of<T>(k.own), .others = cuda::data_of<T>(k.others), .row = row,
                       .num_ranks = int(k.others.dim(0)) + 1, .rank = k.rank};
  const bool is_aligned = cuda::is_aligned(parts.own, kPack) && cuda::is_aligned(k.out.address(), kPack) &&
                          (parts.num_ranks == 1 || (cuda::is_aligned(parts.others, kPack) &&
                                                    (parts.num_ranks == 2 || row * std::int64_t(sizeof(T)) % kPack == 0)));
  constexpr std::int64_t kSize = kPack / std::int64_t(sizeof(T));
  const std::int64_t in_packs = is_aligned ? count / kSize * kSize : 0;
  launch<T, kPack>(device, k, parts, 0, in_packs);
  launch<T, int(sizeof(T))>(device, k, parts, in_packs, count - in_packs);
}

}  // namespace reduce_ranks_kernels

void run(Cuda device, const ReduceRanks& k) {
  using namespace reduce_ranks_kernels;
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  switch (k.out.dtype()) {
    case DType::f64: return run<double>(device, k);
    case DType::f32: return run<float>(device, k);
    case DType::f16: return run<cuda::half>(device, k);
    case DType::bf16: return run<cuda::bfloat>(device, k);
    case DType::i64: return run<std::int64_t>(device, k);
    case DType::i32: return run<std::int32_t>(device, k);
    case DType::u8:
    case DType::boolean: return run<std::uint8_t>(device, k);
  }
}

}  // namespace refrain
