// Σ x² in double on CUDA: a block of threads a block of 8192 elements, then one block over their sums. One fixed order. The
// blocks of many tensors share a launch, and find theirs in a table that comes with it.
#include <refrain/core/cuda/platform.cuh>

#include <refrain/kernels/common/cuda/reduce.cuh>
#include <refrain/kernels/common/cuda/strided.cuh>
#include <refrain/kernels/reduce/reduce.h>

namespace refrain {

namespace squared_norm_kernels {

constexpr int kThreads = 256;
constexpr std::int64_t kBlock = 8192;

// As many as fit into the 4 KiB that every driver passes to a kernel. Tensor i has blocks first_blocks[i] …
// first_blocks[i + 1] - 1.
struct SquareTable {
  static constexpr int kMost = 192;
  const void* x[kMost];
  std::int64_t numel[kMost];
  unsigned first_blocks[kMost + 1] = {};
  unsigned char is_packed[kMost];
  int count = 0;

  __device__ __forceinline__ int tensor_of(unsigned block) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_blocks[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};
static_assert(sizeof(SquareTable) + 32 <= 4096);

template <class X>
__global__ __launch_bounds__(kThreads) void square_blocks(const __grid_constant__ SquareTable table, double* partial) {
  constexpr int kPack = 16 / int(sizeof(X));
  const int which = table.tensor_of(blockIdx.x);
  const X* x = static_cast<const X*>(table.x[which]);
  const std::int64_t numel = table.numel[which], first = std::int64_t(blockIdx.x - table.first_blocks[which]) * kBlock;
  const bool is_packed = table.is_packed[which] != 0;
  const std::int64_t end = numel - first < kBlock ? numel : first + kBlock;
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

// A block a tensor.
__global__ __launch_bounds__(kThreads) void add_blocks(const __grid_constant__ SquareTable table, const double* partial,
                                                       double* out, double* guard) {
  const unsigned end = table.first_blocks[blockIdx.x + 1];
  double sum = 0;
#pragma unroll 4
  for (unsigned i = table.first_blocks[blockIdx.x] + threadIdx.x; i < end; i += kThreads) sum += partial[i];
  REFRAIN_SHARED(double, slots, [kThreads / cuda::kWarp]);
  sum = cuda::block_reduce<kThreads, cuda::Add>(sum, slots);
  if (threadIdx.x != 0) return;
  out[blockIdx.x] = sum;
  if (guard != nullptr) *guard += sum - sum;  // 0 or NaN
}

// A table takes neighbours of one dtype as long as there is room, in it and in the scratch. `guard` is for one tensor.
void start(const Cuda& device, std::string_view name, std::span<const In> tensors, const Out& scratch, double* out,
           double* guard = nullptr) {
  double* partial = scratch.data<double>();
  for (std::size_t next = 0; next < tensors.size();) {
    SquareTable table;
    const DType dtype = tensors[next].dtype();
    for (; next < tensors.size() && table.count < SquareTable::kMost && tensors[next].dtype() == dtype; ++next) {
      const In& x = tensors[next];
      const std::int64_t blocks = squared_norm_scratch_numel(x.numel());
      invariant(blocks == std::max<std::int64_t>(1, cuda::ceil_div(x.numel(), kBlock)), "squared_norm: scratch has another block size");
      const std::int64_t end = table.first_blocks[table.count] + blocks;
      if (end > scratch.numel()) break;
      table.x[table.count] = x.address();
      table.numel[table.count] = x.numel();
      table.is_packed[table.count] = cuda::is_aligned(x.address(), 16);
      table.first_blocks[++table.count] = unsigned(end);
    }
    invariant(table.count > 0, "squared_norm: the scratch is too small");
    cuda::dispatch_floating(dtype, name, [&](auto zero) {
      const dim3 blocks(table.first_blocks[table.count]);
      cuda::launch(name, square_blocks<decltype(zero)>, {.grid = blocks, .block = kThreads}, device, table, partial);
    });
    cuda::launch(name, add_blocks, {.grid = unsigned(table.count), .block = kThreads}, device, table, partial, out, guard);
    out += table.count;
  }
}

}  // namespace squared_norm_kernels

void run(Cuda device, const SquaredNorm& k) {
  if (!k.out.has_bytes()) return;
  double* guard = k.guard.has_bytes() ? k.guard.data<double>() : nullptr;
  squared_norm_kernels::start(device, k.name, std::span(&k.x, 1), k.scratch, k.out.data<double>(), guard);
}

void run(Cuda device, const SquaredNorms& k) {
  if (!k.out.has_bytes()) return;
  squared_norm_kernels::start(device, k.name, k.x, k.scratch, k.out.data<double>());
}

}  // namespace refrain
