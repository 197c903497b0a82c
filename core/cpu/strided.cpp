#include <refrain/core/cpu/strided.h>

#include <cstring>

namespace refrain::detail {

namespace {

template <class T>
void fill(const Shape& shape, std::byte* to, const Strides& strides, T value) {
  T* data = reinterpret_cast<T*>(to);
  const std::int64_t step = shape.empty() ? 1 : strides.back();
  for_each_run(shape, strides, strides, [&](std::int64_t offset, std::int64_t, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) data[offset + i * step] = value;
  });
}

}  // namespace

void copy_on_host(const Shape& shape, int size, std::byte* to, const Strides& to_strides, const std::byte* from, const Strides& from_strides) {
  if (is_contiguous(shape, to_strides) && is_contiguous(shape, from_strides)) {
    std::memmove(to, from, std::size_t(numel_of(shape) * size));
    return;
  }
  const std::int64_t to_step = shape.empty() ? 1 : to_strides.back(), from_step = shape.empty() ? 1 : from_strides.back();
  for_each_run(shape, to_strides, from_strides, [&](std::int64_t to_offset, std::int64_t from_offset, std::int64_t length) {
    std::byte* to_run = to + to_offset * size;
    const std::byte* from_run = from + from_offset * size;
    if (to_step == 1 && from_step == 1) {
      std::memcpy(to_run, from_run, std::size_t(length * size));
    } else {
      for (std::int64_t i = 0; i < length; ++i) std::memcpy(to_run + i * to_step * size, from_run + i * from_step * size, std::size_t(size));
    }
  });
}

void fill_on_host(const Shape& shape, int size, std::byte* to, const Strides& strides, std::uint64_t pattern) {
  switch (size) {
    case 1: return fill(shape, to, strides, std::uint8_t(pattern));
    case 2: return fill(shape, to, strides, std::uint16_t(pattern));
    case 4: return fill(shape, to, strides, std::uint32_t(pattern));
    case 8: return fill(shape, to, strides, pattern);
    default: fail<InternalError>("internal error: fill of elements of ", size, " bytes");
  }
}

}  // namespace refrain::detail
