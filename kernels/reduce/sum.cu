// Sums on CUDA by the CPU's plan (sum_plan.h): blocks of a fixed size in the accumulator type, block sums in double. Which
// thread adds which element, and in which order, depends on shapes alone: loads are packs or single, the order is the same.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/core/cuda/copy.h>
#include <refrain/core/rounding.h>
#include <refrain/kernels/common/cuda/reduce.cuh>
#include <refrain/kernels/common/cuda/round_to_odd.cuh>
#include <refrain/kernels/common/cuda/strided.cuh>
#include <refrain/kernels/reduce/reduce.h>
#include <refrain/kernels/reduce/sum_plan.h>

#include <cstring>

namespace refrain {

namespace sum_kernels {

constexpr int kThreads = 256;

// Where sums of blocks go: rounded to the output, or as they are to scratch.
template <class T, class O>
struct BlockSums {
  O* out;
  T* partial;  // null where a block is the whole sum
  double scale;

  __device__ __forceinline__ void store(std::int64_t index, T sum) const {
    if (partial != nullptr)
      partial[index] = sum;
    else
      out[index] = cuda::narrow_once<O>(double(sum) * scale);
  }
};

struct SumShape {
  std::int64_t reduced, columns, block, num_blocks, num_sums;  // num_sums: outer indexes × blocks
};

// A sum of neighbours by kGroup threads, a warp or a block of them.
template <class X, class O, int kGroup, class T = cuda::accumulator<X>>
__global__ __launch_bounds__(kThreads) void sum_rows(SumShape shape, const X* x, BlockSums<T, O> to, bool is_packed) {
  constexpr int kPack = 16 / int(sizeof(X));
  const int lane = int(threadIdx.x) % kGroup;
  const std::int64_t index = std::int64_t(blockIdx.x) * (kThreads / kGroup) + threadIdx.x / kGroup;
  if (kGroup < kThreads && index >= shape.num_sums) return;
  const std::int64_t row = index / shape.num_blocks, first = (index - row * shape.num_blocks) * shape.block;
  const std::int64_t left = shape.reduced - first, length = left < shape.block ? left : shape.block;
  const X* from = x + row * shape.reduced + first;
  T sum = 0;
  for (std::int64_t i = std::int64_t(lane) * kPack; i < length; i += kGroup * kPack) {
    const std::uint32_t count = length - i < kPack ? std::uint32_t(length - i) : kPack;
    T values[kPack];
    cuda::load_values(from + i, count, values, is_packed);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      if (std::uint32_t(j) < count) sum += values[j];
    }
  }
  if constexpr (kGroup == cuda::kWarp) {
    sum = cuda::warp_reduce<cuda::Add>(sum);
  } else {
    REFRAIN_SHARED(T, slots, [kThreads / cuda::kWarp]);
    sum = cuda::block_reduce<kThreads, cuda::Add>(sum, slots);
  }
  if (lane == 0) to.store(index, sum);
}

// Sums of columns of a block of rows: 32 lanes beside each other have kEach columns each, 8 warps every eighth row.
template <class X, class O, class T = cuda::accumulator<X>>
__global__ __launch_bounds__(kThreads) void sum_columns(SumShape shape, cuda::Divisor cuts, const X* x, BlockSums<T, O> to,
                                                        bool is_packed) {
  constexpr int kEach = 8 / int(sizeof(X)), kWarps = kThreads / cuda::kWarp, kTile = cuda::kWarp * kEach;
  REFRAIN_SHARED(T, sums, [kWarps][kTile]);
  const int lane = int(threadIdx.x) % cuda::kWarp, warp = int(threadIdx.x) / cuda::kWarp;
  const std::uint32_t tile = blockIdx.x / cuts.value;
  const std::int64_t index = tile, column0 = std::int64_t(blockIdx.x - tile * cuts.value) * kTile,
                     column = column0 + lane * kEach;
  const std::int64_t outer = index / shape.num_blocks, first = (index - outer * shape.num_blocks) * shape.block;
  const std::int64_t rows_left = shape.reduced - first, rows = rows_left < shape.block ? rows_left : shape.block;
  const std::int64_t left = shape.columns - column;
  const std::uint32_t count = left <= 0 ? 0 : left < kEach ? std::uint32_t(left) : kEach;
  T sum[kEach] = {};
  if (count > 0) {
    const X* from = x + (outer * shape.reduced + first) * shape.columns + column;
#pragma unroll 4
    for (std::int64_t r = warp; r < rows; r += kWarps) {
      T values[kEach];
      cuda::load_values(from + r * shape.columns, count, values, is_packed);
#pragma unroll
      for (int j = 0; j < kEach; ++j) sum[j] += values[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kEach; ++j) sums[warp][lane * kEach + j] = sum[j];
  __syncthreads();
  const int c = int(threadIdx.x);
  if (c >= kTile || column0 + c >= shape.columns) return;
  T total = sums[0][c];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) total += sums[w][c];
  to.store(index * shape.columns + column0 + c, total);
}

// The outer dims: which outer index has this index among the kept dims and that among the reduced ones.
struct OuterDims {
  int count;
  std::int64_t extents[kMaxDims];
  bool is_reduced[kMaxDims];

  __device__ __forceinline__ std::int64_t index(std::int64_t kept, std::int64_t term) const {
    std::int64_t result = 0, step = 1;
#pragma unroll
    for (int i = kMaxDims - 1; i >= 0; --i) {  // a constant index each: parameters stay where they are
      if (i >= count) continue;
      const std::int64_t rest = is_reduced[i] ? term : kept, quotient = rest / extents[i];
      result += (rest - quotient * extents[i]) * step;
      term = is_reduced[i] ? quotient : term;
      kept = is_reduced[i] ? kept : quotient;
      step *= extents[i];
    }
    return result;
  }
};

struct CombineShape {
  OuterDims outer;
  std::int64_t terms, num_blocks, columns, outer_kept;
};

// Adds block sums in double: kLanes threads a sum take every kLanes-th block, then their sums are added in order.
template <class T, class O, int kLanes>
__global__ __launch_bounds__(kThreads) void combine(CombineShape shape, const T* partial, O* out, double scale) {
  constexpr int kColumns = kThreads / kLanes;
  REFRAIN_SHARED(double, sums, [kLanes][kColumns]);
  const int c = int(threadIdx.x) % kColumns, lane = int(threadIdx.x) / kColumns;
  const std::int64_t target = std::int64_t(blockIdx.x) * kColumns + c, numel = shape.outer_kept * shape.columns;
  double sum = 0;
  if (target < numel) {
    const std::int64_t kept = target / shape.columns, column = target - kept * shape.columns;
    for (std::int64_t i = lane; i < shape.terms * shape.num_blocks; i += kLanes) {
      const std::int64_t term = i / shape.num_blocks, block = i - term * shape.num_blocks;
      sum += double(partial[(shape.outer.index(kept, term) * shape.num_blocks + block) * shape.columns + column]);
    }
  }
  sums[lane][c] = sum;
  __syncthreads();
  if (lane != 0 || target >= numel) return;
  for (int other = 1; other < kLanes; ++other) sum += sums[other][c];
  out[target] = cuda::narrow_once<O>(sum * scale);
}

template <class X, class O>
void run_sum(const Cuda& device, const Sum& k) {
  using T = cuda::accumulator<X>;
  const SumPlan plan(k.x.shape(), k.out.shape());
  const SumShape shape{plan.reduced, plan.columns, plan.block, plan.num_blocks, plan.outer_count * plan.num_blocks};
  const X* x = cuda::data_of<X>(k.x);
  O* out = cuda::data_of<O>(k.out);
  T* partial = plan.needs_scratch() ? k.scratch.data<T>() : nullptr;
  const BlockSums<T, O> to{out, partial, k.scale};
  if (plan.columns == 1) {
    const bool is_packed =
        cuda::is_aligned(x, 16) && (plan.reduced * std::int64_t(sizeof(X)) % 16 == 0 || k.x.numel() == plan.reduced);
    constexpr std::int64_t kMostOfWarp = 1024;
    if (std::min(plan.block, plan.reduced) <= kMostOfWarp) {
      const dim3 grid(unsigned(cuda::ceil_div(shape.num_sums, kThreads / cuda::kWarp)));
      cuda::launch(k.name, sum_rows<X, O, cuda::kWarp>, {.grid = grid, .block = kThreads}, device, shape, x, to, is_packed);
    } else {
      cuda::launch(k.name, sum_rows<X, O, kThreads>, {.grid = dim3(unsigned(shape.num_sums)), .block = kThreads}, device, shape,
                   x, to, is_packed);
    }
  } else {
    constexpr int kEach = 8 / int(sizeof(X));
    const std::int64_t cuts = cuda::ceil_div(plan.columns, cuda::kWarp * kEach);
    const bool is_packed = cuda::is_aligned(x, 8) && plan.columns % kEach == 0;
    cuda::launch(k.name, sum_columns<X, O>, {.grid = dim3(unsigned(shape.num_sums * cuts)), .block = kThreads}, device, shape,
                 cuda::Divisor(cuts), x, to, is_packed);
  }
  if (partial == nullptr) return;
  CombineShape combined{
      {plan.num_outer, {}, {}}, plan.outer_count / plan.outer_kept, plan.num_blocks, plan.columns, plan.outer_kept};
  for (int i = 0; i < plan.num_outer; ++i) {
    combined.outer.extents[i] = plan.outer[std::size_t(i)].extent;
    combined.outer.is_reduced[i] = plan.outer[std::size_t(i)].is_reduced;
  }
  if (plan.columns == 1) {
    cuda::launch(k.name, combine<T, O, kThreads>, {.grid = dim3(unsigned(plan.outer_kept)), .block = kThreads}, device, combined,
                 partial, out, k.scale);
  } else {
    const dim3 grid(unsigned(cuda::ceil_div(plan.outer_kept * plan.columns, cuda::kWarp)));
    cuda::launch(k.name, combine<T, O, kThreads / cuda::kWarp>, {.grid = grid, .block = kThreads}, device, combined, partial, out,
                 k.scale);
  }
}

// Σ over nothing.
void fill_empty(const Cuda& device, const Sum& k) {
  dispatch_floating(k.out.dtype(), k.name, [&](auto zero) {
    using O = decltype(zero);
    const O value = rounded<O>(0 * k.scale);
    std::uint64_t pattern = 0;
    std::memcpy(&pattern, &value, sizeof(O));
    cuda::fill_strided(device, k.out.shape(), sizeof(O), k.out.address(), k.out.strides(), pattern);
  });
}

}  // namespace sum_kernels

void run(Cuda device, const Sum& k) {
  using namespace sum_kernels;
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  if (k.x.numel() == 0) return fill_empty(device, k);
  cuda::dispatch_floating(k.x.dtype(), k.name, [&](auto from) {
    using X = decltype(from);
    if (k.out.dtype() == k.x.dtype()) return run_sum<X, X>(device, k);
    if constexpr (std::is_same_v<X, float>)
      return k.out.dtype() == DType::f16 ? run_sum<X, cuda::half>(device, k) : run_sum<X, cuda::bfloat>(device, k);
    else if constexpr (sizeof(X) == 2)
      return run_sum<X, float>(device, k);
    else
      fail<InternalError>("internal error: sum of ", k.x.dtype(), " into ", k.out.dtype());
  });
}

}  // namespace refrain
