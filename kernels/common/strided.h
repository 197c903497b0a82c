// One loop over strided data: elements of up to N operands that share a shape, dims reordered and merged so that the
// innermost run is as long as the strides allow.
#pragma once

#include <refrain/core/parallel.h>
#include <refrain/core/shape.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>

namespace refrain {

// Strides of an operand seen in `shape`, which its own shape broadcasts to: repeated dims get 0.
inline Strides broadcast_strides(const Shape& own, const Strides& strides, const Shape& shape) {
  Strides result = Strides::filled(shape.size(), 0);
  for (int i = 1; i <= own.size(); ++i) {
    if (own[own.size() - i] != 1) result[shape.size() - i] = strides[own.size() - i];
  }
  return result;
}

// Operand 0 decides the order of dims: its smallest stride becomes the innermost.
template <std::size_t N>
class StridedLoop {
 public:
  using Offsets = std::array<std::int64_t, N>;

  StridedLoop(const Shape& shape, const std::array<Strides, N>& strides) {
    std::array<int, kMaxDims> order{};
    int count = 0;
    for (int i = 0; i < shape.size(); ++i) {
      if (shape[i] != 1) order[std::size_t(count++)] = i;
    }
    std::stable_sort(order.begin(), order.begin() + count, [&](int a, int b) { return strides[0][a] > strides[0][b]; });
    for (int i = 0; i < count; ++i) append(shape[order[std::size_t(i)]], strides, order[std::size_t(i)]);
    if (num_dims_ == 0) {
      extents_[0] = 1;
      num_dims_ = 1;
      for (std::size_t n = 0; n < N; ++n) strides_[n][0] = 1;
    }
  }

  // Length of the innermost run and an operand's step in it.
  std::int64_t inner() const { return extents_[std::size_t(num_dims_ - 1)]; }
  std::int64_t inner_stride(std::size_t operand) const { return strides_[operand][std::size_t(num_dims_ - 1)]; }
  // Number of such runs.
  std::int64_t rows() const {
    std::int64_t count = 1;
    for (int i = 0; i + 1 < num_dims_; ++i) count *= extents_[std::size_t(i)];
    return count;
  }
  int num_dims() const { return num_dims_; }
  std::int64_t extent(int dim) const { return extents_[std::size_t(dim)]; }
  std::int64_t stride(std::size_t operand, int dim) const { return strides_[operand][std::size_t(dim)]; }

  // Calls f(offsets of the operands, length) for runs or parts of runs, in parallel. A call's length depends on the
  // shape alone and is about `grain` elements at most.
  template <class F>
  void parallel_rows(std::int64_t grain, F&& f) const {
    const std::int64_t length = inner(), count = rows();
    if (length == 0 || count == 0) return;
    const std::int64_t cuts = std::max<std::int64_t>(1, (length + grain - 1) / grain);
    const std::int64_t part = (length + cuts - 1) / cuts;
    const std::int64_t parts_per_piece = std::max<std::int64_t>(1, grain / part);
    parallel_for(count * cuts, parts_per_piece, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        Offsets offsets = row_offsets(i / cuts);
        const std::int64_t first = i % cuts * part;
        for (std::size_t n = 0; n < N; ++n) offsets[n] += first * inner_stride(n);
        if (first < length) f(offsets, std::min(part, length - first));
      }
    });
  }

 private:
  void append(std::int64_t extent, const std::array<Strides, N>& strides, int dim) {
    bool merges = num_dims_ > 0;
    for (std::size_t n = 0; n < N && merges; ++n) {
      merges = strides_[n][std::size_t(num_dims_ - 1)] == strides[n][dim] * extent;
    }
    if (!merges) extents_[std::size_t(num_dims_++)] = 1;
    extents_[std::size_t(num_dims_ - 1)] *= extent;
    for (std::size_t n = 0; n < N; ++n) strides_[n][std::size_t(num_dims_ - 1)] = strides[n][dim];
  }

  Offsets row_offsets(std::int64_t row) const {
    Offsets offsets{};
    for (int i = num_dims_ - 2; i >= 0 && row > 0; --i) {
      const std::int64_t index = row % extents_[std::size_t(i)];
      row /= extents_[std::size_t(i)];
      for (std::size_t n = 0; n < N; ++n) offsets[n] += index * strides_[n][std::size_t(i)];
    }
    return offsets;
  }

  int num_dims_ = 0;
  std::array<std::int64_t, kMaxDims> extents_{};
  std::array<std::array<std::int64_t, kMaxDims>, N> strides_{};
};

}  // namespace refrain
