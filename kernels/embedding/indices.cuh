// The indices of an embedding, i64 or i32, as its kernels read them.
#pragma once

#include <refrain/kernels/common/cuda/types.cuh>
#include <refrain/kernels/kernel.h>

namespace refrain::embedding_kernels {

using namespace cuda;

struct Indices {
  const void* data;
  bool are_wide;  // i64
  std::int64_t count, num_rows;
  __device__ __forceinline__ std::int64_t at(std::int64_t i) const {
    return are_wide ? static_cast<const std::int64_t*>(data)[i] : std::int64_t(static_cast<const std::int32_t*>(data)[i]);
  }
};

inline Indices indices_of(const In& indices, std::int64_t num_rows) {
  return {indices.address(), indices.dtype() == DType::i64, indices.numel(), num_rows};
}

}  // namespace refrain::embedding_kernels
