// What a product kernel is given to work in while it runs. For .cpp files of ops.
#pragma once

#include <refrain/autograd/op.h>
#include <refrain/kernels/matmul/matmul.h>

namespace refrain {

// For a product [m, k] [k, n]; undefined where the device's kernels need none.
inline Tensor product_workspace(const Device& device, std::int64_t m, std::int64_t n, std::int64_t k) {
  const std::int64_t bytes = product_workspace_bytes(device.target(), m, n, k);
  if (bytes == 0) return {};
  const KindScope kind(MemoryKind::workspace);
  return empty({bytes}, DType::u8, device);
}

// For the sums of `cols` columns over `rows` rows: room for 128 partial sums of each.
inline Tensor column_sums_workspace(const Device& device, std::int64_t rows, std::int64_t cols) { return product_workspace(device, cols, 32, rows); }

}  // namespace refrain
