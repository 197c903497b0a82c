// Embedding, forward: rows are copied, whatever they hold, in the largest units that their addresses allow.
#include <refrain/kernels/common/cuda/fault.cuh>
#include <refrain/kernels/common/cuda/reduce.cuh>
#include <refrain/kernels/embedding/embedding.h>
#include <refrain/kernels/embedding/indices.cuh>

namespace refrain {

namespace embedding_kernels {

inline constexpr int kCopyRows = 8;  // a warp each

// Rows of `units` times kBytes.
template <int kBytes>
__global__ void __launch_bounds__(kWarp* kCopyRows)
    copy_rows(Indices indices, const std::uint16_t* weight, std::uint16_t* out, std::int64_t units, CudaFault* fault) {
  constexpr int kHalves = kBytes / 2;
  const std::int64_t i = std::int64_t(blockIdx.x) * kCopyRows + threadIdx.x / kWarp;
  if (i >= indices.count) return;
  const int lane = int(threadIdx.x) % kWarp;
  const std::int64_t index = indices.at(i);
  if (index < 0 || index >= indices.num_rows) {
    if (lane == 0) report(fault, CudaFault::embedding_index, i, index, indices.num_rows);
    return;
  }
  const std::uint16_t* from = weight + index * units * kHalves;
  std::uint16_t* to = out + i * units * kHalves;
#pragma unroll 4
  for (std::int64_t unit = lane; unit < units; unit += kWarp) {
    store_pack(to + unit * kHalves, load_pack<std::uint16_t, kBytes>(from + unit * kHalves));
  }
}

}  // namespace embedding_kernels

void run(Cuda device, const EmbeddingForward& k) {
  using namespace embedding_kernels;
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  const auto* weight = data_of<std::uint16_t>(k.weight);
  auto* out = data_of<std::uint16_t>(k.out);
  const std::int64_t row_bytes = k.weight.dim(1) * std::int64_t(size_of(k.weight.dtype()));
  const auto copy_in = [&](auto bytes) {
    constexpr int kBytes = bytes;
    if (row_bytes % kBytes != 0 || !is_aligned(weight, kBytes) || !is_aligned(out, kBytes)) return false;
    const Indices indices = indices_of(k.indices, k.weight.dim(0));
    cuda::launch(k.name, copy_rows<kBytes>,
                 {.grid = dim3(unsigned(ceil_div(indices.count, kCopyRows))), .block = dim3(kWarp * kCopyRows)}, device, indices,
                 weight, out, row_bytes / kBytes, device.fault);
    return true;
  };
  if (copy_in(std::integral_constant<int, 16>{}) || copy_in(std::integral_constant<int, 8>{})) return;
  if (!copy_in(std::integral_constant<int, 4>{})) copy_in(std::integral_constant<int, 2>{});
}

}  // namespace refrain
