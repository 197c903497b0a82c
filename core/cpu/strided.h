// Walking, copying and filling strided data in host memory.
#pragma once

#include <refrain/core/shape.h>

#include <cstddef>
#include <cstdint>

namespace refrain::detail {

// Calls f(offset_a, offset_b, length) for every run along the last dim; offsets are in elements.
template <class F>
void for_each_run(const Shape& shape, const Strides& a, const Strides& b, F&& f) {
  if (numel_of(shape) == 0) return;
  if (shape.empty()) return f(std::int64_t{0}, std::int64_t{0}, std::int64_t{1});
  const int last = shape.size() - 1;
  Dims index = Dims::filled(shape.size(), 0);
  std::int64_t offset_a = 0, offset_b = 0;
  for (;;) {
    f(offset_a, offset_b, shape[last]);
    int dim = last - 1;
    for (; dim >= 0; --dim) {
      offset_a += a[dim];
      offset_b += b[dim];
      if (++index[dim] < shape[dim]) break;
      offset_a -= a[dim] * shape[dim];
      offset_b -= b[dim] * shape[dim];
      index[dim] = 0;
    }
    if (dim < 0) return;
  }
}

// Elements of `size` bytes between two layouts of one shape; areas that overlap must be contiguous.
void copy_on_host(const Shape& shape, int size, std::byte* to, const Strides& to_strides, const std::byte* from, const Strides& from_strides);
// Sets elements of `size` bytes (1, 2, 4 or 8) to the low bytes of `pattern`.
void fill_on_host(const Shape& shape, int size, std::byte* to, const Strides& strides, std::uint64_t pattern);

}  // namespace refrain::detail
