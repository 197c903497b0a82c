// C (+)= A·B for attention's tiles, in registers: products this small run at a third of peak in general libraries.
// Each element of C is one chain of fused multiply-adds in the order of the inner dim, so its bits depend on neither
// the tiling nor the vector width.
#pragma once

#include <cstdint>

namespace refrain::attention_tiles {

// Steps between the rows of a tile in the working buffers.
inline constexpr std::int64_t kTileStride = 64;

// How element (row i, inner p) of A lies in memory.
enum class TileLayout {
  rows,        // a[i·lda + p]
  tile,        // a[i·kTileStride + p]
  transposed,  // a[p·kTileStride + i]
};

// C[m×n] = A[m×k]·B[k×n], or C += A·B with `accumulate`. Rows of B and C are contiguous, ldb and ldc apart.
template <TileLayout kLayout, class T>
void tile_product(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T* c,
                  std::int64_t ldc, bool accumulate);

}  // namespace refrain::attention_tiles
