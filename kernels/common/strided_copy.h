// Copies elements between two layouts of one shape, in parallel. Transposed data goes in square tiles that stay in
// the cache.
#pragma once

#include <refrain/kernels/common/strided.h>

#include <cstddef>

namespace refrain {

// Elements of `size` bytes (1, 2, 4 or 8); the areas must not overlap. Strides are in elements.
void copy_strided(const Shape& shape, int size, std::byte* to, const Strides& to_strides, const std::byte* from,
                  const Strides& from_strides);

}  // namespace refrain
