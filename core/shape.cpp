#include <refrain/core/shape.h>

namespace refrain {

std::int64_t numel_of(const Shape& shape) {
  std::int64_t count = 1;
  for (std::int64_t extent : shape) {
    check(extent >= 0, "negative extent in shape ", shape);
    const bool overflow = __builtin_mul_overflow(count, extent, &count);
    check(!overflow && count < (std::int64_t{1} << 62), "shape ", shape, " has too many elements");
  }
  return count;
}

Strides contiguous_strides(const Shape& shape) {
  Strides strides = Strides::filled(shape.size(), 1);
  for (int i = shape.size() - 2; i >= 0; --i) strides[i] = strides[i + 1] * std::max<std::int64_t>(shape[i + 1], 1);
  return strides;
}

bool is_contiguous(const Shape& shape, const Strides& strides) {
  std::int64_t expected = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != expected) return numel_of(shape) == 0;
    expected *= shape[i];
  }
  return true;
}

int normalize_dim(int dim, int num_dims, std::string_view op) {
  check(dim >= -num_dims && dim < num_dims, op, ": dim ", dim, " is out of range for ", num_dims, " dims");
  return dim < 0 ? dim + num_dims : dim;
}

Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op) {
  const int num_dims = std::max(a.size(), b.size());
  Shape out = Shape::filled(num_dims, 1);
  for (int i = 1; i <= num_dims; ++i) {
    const std::int64_t x = i <= a.size() ? a[a.size() - i] : 1;
    const std::int64_t y = i <= b.size() ? b[b.size() - i] : 1;
    check(x == y || x == 1 || y == 1, op, ": shapes ", a, " and ", b, " do not broadcast");
    out[num_dims - i] = x == 1 ? y : x;
  }
  return out;
}

}  // namespace refrain
