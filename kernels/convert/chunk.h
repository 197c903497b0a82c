// Elements of any floating type and step seen as an array of T, a chunk that stays in the first-level cache at a time:
// how kernels read and write 16-bit and mixed operands without a copy of them. T is f64, for f64 operands, or f32, for all
// others. For .cpp files of the kernels room only.
#pragma once

#include <refrain/core/dtype.h>

#include <cstddef>
#include <cstdint>

namespace refrain {

inline constexpr std::int64_t kChunk = 512;

// n <= kChunk elements, `step` apart from the one at `first` on: the array itself when it is contiguous and of type T, else
// `buffer`, filled.
template <class T>
const T* read_chunk(DType dtype, const std::byte* first, std::int64_t step, std::int64_t n, T* buffer);

// The reverse: x rounded to nearest, ties to even.
template <class T>
void write_chunk(const T* x, std::int64_t n, DType dtype, std::byte* first, std::int64_t step);

}  // namespace refrain
