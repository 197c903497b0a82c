// Shapes and strides: up to kMaxDims signed 64-bit numbers, no heap.
#pragma once

#include <refrain/core/check.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>

namespace refrain {

inline constexpr int kMaxDims = 8;

// A short list of extents (a Shape) or of element steps (Strides).
class Dims {
 public:
  constexpr Dims() = default;
  Dims(std::initializer_list<std::int64_t> values) : Dims(std::span<const std::int64_t>(values.begin(), values.size())) {}
  explicit Dims(std::span<const std::int64_t> values) {
    check(values.size() <= kMaxDims, "a tensor has at most ", kMaxDims, " dims, got ", values.size());
    std::copy(values.begin(), values.end(), values_.begin());
    size_ = int(values.size());
  }
  static Dims filled(int size, std::int64_t value) {
    Dims dims;
    check(size >= 0 && size <= kMaxDims, "a tensor has at most ", kMaxDims, " dims, got ", size);
    dims.size_ = size;
    std::fill_n(dims.values_.begin(), size, value);
    return dims;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t operator[](int i) const { return values_[std::size_t(i)]; }
  std::int64_t& operator[](int i) { return values_[std::size_t(i)]; }
  std::int64_t back() const { return values_[std::size_t(size_ - 1)]; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }
  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + size_; }
  void push_back(std::int64_t value) {
    check(size_ < kMaxDims, "a tensor has at most ", kMaxDims, " dims");
    values_[std::size_t(size_++)] = value;
  }
  void insert(int at, std::int64_t value) {
    push_back(value);
    std::rotate(begin() + at, end() - 1, end());
  }
  void erase(int at) {
    std::copy(begin() + at + 1, end(), begin() + at);
    --size_;
  }

  friend bool operator==(const Dims& a, const Dims& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

 private:
  std::array<std::int64_t, kMaxDims> values_{};
  int size_ = 0;
};

using Shape = Dims;
using Strides = Dims;

inline std::ostream& operator<<(std::ostream& out, const Dims& dims) {
  out << '[';
  for (int i = 0; i < dims.size(); ++i) out << (i ? ", " : "") << dims[i];
  return out << ']';
}

// Number of elements. Throws InvalidArgument for a negative extent or a product over 2^62.
std::int64_t numel_of(const Shape& shape);

// Row-major steps: the last dim has stride 1. Extents of 0 count as 1.
Strides contiguous_strides(const Shape& shape);
// Whether elements lie in row-major order without gaps. Dims of extent 1 may have any stride; no elements are contiguous.
bool is_contiguous(const Shape& shape, const Strides& strides);

// The dim counted from the front; -1 is the last. Throws InvalidArgument when out of range.
int normalize_dim(int dim, int num_dims, std::string_view op);

// The shape both broadcast to (NumPy's rule). Throws InvalidArgument naming the op when they do not.
Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op);

}  // namespace refrain
