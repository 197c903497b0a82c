// Copies and fills of strided views in a device's memory, in order on its stream. Strides are in elements.
#pragma once

#include <refrain/core/shape.h>
#include <refrain/core/stream.h>

#include <cstddef>
#include <cstdint>

namespace refrain::cuda {

// Elements of `size` bytes (1, 2, 4 or 8) between two layouts of one shape; areas that overlap must be contiguous.
void copy_strided(const Cuda& device, const Shape& shape, int size, std::byte* to, const Strides& to_strides, const std::byte* from,
                  const Strides& from_strides);
// Sets elements of `size` bytes (1, 2, 4 or 8) to the low bytes of `pattern`.
void fill_strided(const Cuda& device, const Shape& shape, int size, std::byte* to, const Strides& strides, std::uint64_t pattern);

}  // namespace refrain::cuda
