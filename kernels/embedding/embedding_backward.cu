// Embedding, backward: positions are put in order of their indices by a stable radix sort, eight bits a pass; then a warp sums
// the positions of its row of the table in rising order, in the accumulator type, and rounds once. No atomics on numbers: the
// same bits in every run, and on the CPU.
#include <refrain/kernels/common/cuda/fault.cuh>
#include <refrain/kernels/common/cuda/rows.cuh>
#include <refrain/kernels/embedding/embedding.h>
#include <refrain/kernels/embedding/indices.cuh>
#include <refrain/kernels/embedding/order.h>

#include <utility>

namespace refrain {

namespace embedding_kernels {

using cuda::accumulator;

// What position i is sorted by: its row, or num_rows for those that have none, which come last and are never summed.
__device__ __forceinline__ std::uint32_t key_of(const Indices& indices, std::int64_t padding_idx, std::int64_t i) {
  const std::int64_t index = indices.at(i);
  return std::uint32_t(index < 0 || index >= indices.num_rows || index == padding_idx ? indices.num_rows : index);
}

// A pass: positions in the order of the passes before (null: as they come) and the bits it looks at.
struct Pass {
  Indices indices;
  std::int64_t padding_idx;
  const std::uint32_t* from;
  std::uint32_t* to;
  std::uint32_t* counts;  // [blocks, kDigits]
  int shift;
};

__device__ __forceinline__ std::uint32_t position_of(const Pass& pass, std::int64_t i) {
  return pass.from ? pass.from[i] : std::uint32_t(i);
}
__device__ __forceinline__ int digit_of(const Pass& pass, std::uint32_t position) {
  return int(key_of(pass.indices, pass.padding_idx, position) >> pass.shift) & (kDigits - 1);
}

// How often each digit is found in a block's chunk. The first pass reports indices outside the table.
__global__ void __launch_bounds__(kDigits) count_digits(Pass pass, CudaFault* fault) {
  REFRAIN_SHARED(unsigned, counts, [kDigits]);
  const int digit = int(threadIdx.x);
  counts[digit] = 0;
  __syncthreads();
  for (int j = digit; j < kChunk; j += kDigits) {
    const std::int64_t i = std::int64_t(blockIdx.x) * kChunk + j;
    if (i >= pass.indices.count) break;
    const std::uint32_t position = position_of(pass, i);
    atomicAdd(&counts[digit_of(pass, position)], 1u);
    if (pass.from) continue;
    const std::int64_t index = pass.indices.at(i);
    if (index < 0 || index >= pass.indices.num_rows) report(fault, CudaFault::embedding_index, i, index, pass.indices.num_rows);
  }
  __syncthreads();
  pass.counts[std::int64_t(blockIdx.x) * kDigits + digit] = counts[digit];
}

// Moves a block's chunk to where its digits belong. Thread d moves those with digit d, in their order: that is what makes the
// sort stable, and costs kChunk looks at shared memory that the whole block takes together.
__global__ void __launch_bounds__(kDigits) move_by_digit(Pass pass) {
  REFRAIN_SHARED(std::uint32_t, positions, [kChunk]);
  REFRAIN_SHARED(std::uint8_t, digits, [kChunk]);
  REFRAIN_SHARED(std::uint32_t, warp_sums, [kDigits / kWarp]);
  const int digit = int(threadIdx.x), lane = digit % kWarp, warp = digit / kWarp;
  const std::int64_t begin = std::int64_t(blockIdx.x) * kChunk;
  const int count = pass.indices.count - begin < kChunk ? int(pass.indices.count - begin) : kChunk;
  for (int j = digit; j < count; j += kDigits) {
    positions[j] = position_of(pass, begin + j);
    digits[j] = std::uint8_t(digit_of(pass, positions[j]));
  }
  // Before this block's share of a digit: that of the blocks before it, and all smaller digits.
  std::uint32_t before = 0, total = 0;
  for (unsigned block = 0; block < gridDim.x; ++block) {
    const std::uint32_t here = pass.counts[std::int64_t(block) * kDigits + digit];
    if (block < blockIdx.x) before += here;
    total += here;
  }
  std::uint32_t up_to = total;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const std::uint32_t other = __shfl_up_sync(kAllLanes, up_to, distance);
    if (lane >= distance) up_to += other;
  }
  if (lane == kWarp - 1) warp_sums[warp] = up_to;
  __syncthreads();
  std::uint32_t at = before + up_to - total;
  for (int w = 0; w < warp; ++w) at += warp_sums[w];
#pragma unroll 4
  for (int j = 0; j < count; ++j) {
    if (digits[j] == digit) pass.to[at++] = positions[j];
  }
}

// starts[v]: how many sorted positions belong to rows before v.
__global__ void __launch_bounds__(256)
    find_starts(Indices indices, std::int64_t padding_idx, const std::uint32_t* sorted, std::uint32_t* starts) {
  const std::int64_t v = std::int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (v > indices.num_rows) return;
  std::int64_t low = 0, high = indices.count;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (std::int64_t(key_of(indices, padding_idx, sorted[middle])) < v) low = middle + 1;
    else high = middle;
  }
  starts[v] = std::uint32_t(low);
}

inline constexpr int kSumRows = 8;  // a warp each, of one slot of its row

// Null starts: nobody picked any row.
template <class S>
__global__ void __launch_bounds__(kWarp* kSumRows)
    sum_rows(const S* grad_out, const std::uint32_t* sorted, const std::uint32_t* starts, S* grad_weight, std::int64_t num_rows,
             int width, bool has_packs) {
  using T = accumulator<S>;
  constexpr int K = 16 / int(sizeof(S));
  const std::int64_t v = std::int64_t(blockIdx.x) * kSumRows + threadIdx.x / kWarp;
  if (v >= num_rows) return;
  const RowLayout<kWarp, K> layout(width, has_packs);
  const int slot = int(blockIdx.y);
  Group<T, K> sum;
#pragma unroll
  for (int j = 0; j < K; ++j) sum[j] = T(0);
  const std::uint32_t begin = starts ? starts[v] : 0, end = starts ? starts[v + 1] : 0;
#pragma unroll 4
  for (std::uint32_t i = begin; i < end; ++i) {
    const Group<S, K> group = layout.load(grad_out + std::int64_t(sorted[i]) * width, slot);
#pragma unroll
    for (int j = 0; j < K; ++j) sum[j] += widen(group[j]);
  }
  Group<S, K> rounded;
#pragma unroll
  for (int j = 0; j < K; ++j) rounded[j] = narrow<S>(sum[j]);
  layout.store(grad_weight + v * width, slot, rounded);
}

// Returns the positions in order of their keys.
inline const std::uint32_t* sort_positions(Cuda device, std::string_view name, const Indices& indices, std::int64_t padding_idx,
                                           const OrderParts& parts, std::uint32_t* scratch) {
  Pass pass{.indices = indices,
            .padding_idx = padding_idx,
            .from = nullptr,
            .to = scratch,
            .counts = scratch + parts.counts,
            .shift = 0};
  std::uint32_t* other = scratch + parts.second;
  const dim3 grid(unsigned(ceil_div(indices.count, kChunk)));
  for (; pass.shift == 0 || indices.num_rows >> pass.shift != 0; pass.shift += kDigitBits) {
    launch(name, count_digits, {.grid = grid, .block = dim3(kDigits)}, device, pass, device.fault);
    launch(name, move_by_digit, {.grid = grid, .block = dim3(kDigits)}, device, pass);
    std::uint32_t* const sorted = pass.to;
    pass.from = sorted;
    pass.to = std::exchange(other, sorted);
  }
  return pass.from;
}

}  // namespace embedding_kernels

void run(Cuda device, const EmbeddingBackward& k) {
  using namespace embedding_kernels;
  if (!k.out.has_bytes()) return;
  const Indices indices = indices_of(k.indices, k.out.dim(0));
  const int width = checked_width(k.out.dim(1), k.name);
  check(indices.count < std::int64_t(1) << 31 && indices.num_rows < std::int64_t(1) << 31, k.name,
        ": CUDA takes fewer than 2^31 indices and rows, got ", indices.count, " and ", indices.num_rows);
  const OrderParts parts(indices.count, indices.num_rows);
  auto* scratch = data_of<std::uint32_t>(k.order);
  const std::uint32_t* sorted = nullptr;
  std::uint32_t* starts = nullptr;
  if (indices.count != 0) {
    sorted = sort_positions(device, k.name, indices, k.padding_idx, parts, scratch);
    starts = scratch + parts.starts;
    launch(k.name, find_starts, {.grid = dim3(unsigned(ceil_div(indices.num_rows + 1, 256))), .block = dim3(256)}, device,
           indices, k.padding_idx, sorted, starts);
  }
  cuda::dispatch_floating(k.out.dtype(), k.name, [&](auto zero) {
    using S = decltype(zero);
    const S* grad_out = data_of<S>(k.grad_out);
    S* grad_weight = data_of<S>(k.out);
    constexpr int kSpan = RowLayout<kWarp, 16 / int(sizeof(S))>::kSpan;
    launch(k.name, sum_rows<S>,
           {.grid = dim3(unsigned(ceil_div(indices.num_rows, kSumRows)), unsigned(ceil_div(width, kSpan))),
            .block = dim3(kWarp * kSumRows)},
           device, grad_out, sorted, starts, grad_weight, indices.num_rows, width,
           is_aligned(grad_out, 16) && is_aligned(grad_weight, 16));
  });
}

}  // namespace refrain
