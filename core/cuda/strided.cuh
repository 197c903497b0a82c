// Index arithmetic over strided views: dims are merged on the host and passed by value, and the device turns the number of an
// element into offsets. Device arithmetic is of 32 bits: what does not fit is launched in pieces.
#pragma once

#include <refrain/core/cuda/platform.cuh>
#include <refrain/core/shape.h>

#include <array>
#include <cstdint>
#include <cstdlib>

namespace refrain::cuda {

// Dims of N operands that share a shape, innermost first: operand 0's smallest stride. Neighbours that lie behind each other in
// every operand are one dim. Has at least one dim; what it lacks has extent 1.
template <int N>
struct MergedView {
  int num_dims = 1;
  std::array<std::int64_t, kMaxDims> extents{};
  std::array<std::array<std::int64_t, kMaxDims>, N> strides{};

  MergedView() { extents.fill(1); }
  MergedView(const Shape& shape, const std::array<Strides, N>& of) : MergedView() {
    std::array<int, kMaxDims> order{};
    int count = 0;
    for (int dim = shape.size() - 1; dim >= 0; --dim) {
      if (shape[dim] == 1) continue;
      int at = count++;
      for (; at > 0 && std::abs(of[0][order[at - 1]]) > std::abs(of[0][dim]); --at) order[at] = order[at - 1];
      order[at] = dim;
    }
    num_dims = 0;
    for (int i = 0; i < count; ++i) append(shape[order[i]], of, order[i]);
    if (num_dims > 0) return;
    num_dims = 1;
    for (auto& each : strides) each[0] = 1;
  }

  std::int64_t numel() const {
    std::int64_t product = 1;
    for (int dim = 0; dim < num_dims; ++dim) product *= extents[dim];
    return product;
  }
  // Whether the operands are one run of neighbours.
  bool is_one_run() const {
    bool result = num_dims == 1;
    for (const auto& each : strides) result = result && each[0] == 1;
    return result;
  }

 private:
  void append(std::int64_t extent, const std::array<Strides, N>& of, int dim) {
    bool merges = num_dims > 0;
    for (int n = 0; n < N && merges; ++n) merges = of[n][dim] == strides[n][num_dims - 1] * extents[num_dims - 1];
    if (merges) {
      extents[num_dims - 1] *= extent;
      return;
    }
    extents[num_dims] = extent;
    for (int n = 0; n < N; ++n) strides[n][num_dims] = of[n][dim];
    ++num_dims;
  }
};

// Calls f(part, starts of the operands in elements) for parts of the view whose numbers of elements and spans are below
// `limit`, so that 32 bits address them.
inline constexpr std::int64_t kIndexLimit = std::int64_t{1} << 31;
template <int N, class F>
void for_each_part(const MergedView<N>& view, F&& f, std::array<std::int64_t, N> starts = {}, std::int64_t limit = kIndexLimit) {
  std::int64_t widest = 0, most = 0;
  int cut = 0;
  std::int64_t spans[N + 1] = {}, numel = view.numel();
  if (numel == 0) return;
  for (int dim = 0; dim < view.num_dims; ++dim) {
    for (int n = 0; n < N; ++n) spans[n] += (view.extents[dim] - 1) * std::abs(view.strides[n][dim]);
  }
  spans[N] = numel - 1;
  for (const std::int64_t span : spans) most = std::max(most, span);
  if (most < limit) return f(view, starts);
  for (int dim = 0; dim < view.num_dims; ++dim) {  // the dim that reaches farthest is halved
    std::int64_t reach = view.extents[dim] - 1;
    for (int n = 0; n < N; ++n) reach = std::max(reach, (view.extents[dim] - 1) * std::abs(view.strides[n][dim]));
    if (view.extents[dim] > 1 && reach > widest) widest = reach, cut = dim;
  }
  MergedView<N> part = view;
  // A multiple of 16 keeps packs of neighbours whole.
  const std::int64_t middle = view.extents[cut] / 2, first = middle >= 16 ? middle / 16 * 16 : middle;
  part.extents[cut] = first;
  for_each_part<N>(part, f, starts, limit);
  part.extents[cut] = view.extents[cut] - first;
  for (int n = 0; n < N; ++n) starts[n] += first * view.strides[n][cut];
  for_each_part<N>(part, f, starts, limit);
}

// Quotients of numbers below 2^31 by one that is known on the host (Granlund and Montgomery, "Division by invariant integers
// using multiplication", 1994).
struct Divisor {
  std::uint32_t value = 1, multiplier = 1, shift = 0;

  Divisor() = default;
  explicit Divisor(std::int64_t divisor) : value(std::uint32_t(divisor)) {
    while ((std::uint64_t{1} << shift) < value) ++shift;
    multiplier = std::uint32_t((((std::uint64_t{1} << shift) - value) << 32) / value + 1);
  }
  __device__ __forceinline__ std::uint32_t quotient(std::uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

// A part as kernels get it.
template <int N>
struct StridedIndex {
  int num_dims = 1;
  std::uint32_t numel = 1;
  Divisor extents[kMaxDims];
  std::int32_t strides[N][kMaxDims] = {};

  StridedIndex() = default;
  explicit StridedIndex(const MergedView<N>& view) : num_dims(view.num_dims), numel(std::uint32_t(view.numel())) {
    for (int dim = 0; dim < num_dims; ++dim) {
      extents[dim] = Divisor(view.extents[dim]);
      for (int n = 0; n < N; ++n) strides[n][dim] = std::int32_t(view.strides[n][dim]);
    }
  }

  // Offsets of element `i`; returns its index in the innermost dim.
  __device__ __forceinline__ std::uint32_t offsets(std::uint32_t i, std::int32_t (&to)[N]) const {
    std::uint32_t inner = i;
#pragma unroll
    for (int n = 0; n < N; ++n) to[n] = 0;
#pragma unroll
    for (int dim = 0; dim < kMaxDims; ++dim) {
      const bool is_last = dim + 1 == num_dims;
      const std::uint32_t rest = is_last ? 0 : extents[dim].quotient(i), index = i - rest * extents[dim].value;
      if (dim == 0) inner = index;
#pragma unroll
      for (int n = 0; n < N; ++n) to[n] += std::int32_t(index) * strides[n][dim];
      if (is_last) break;
      i = rest;
    }
    return inner;
  }
};

}  // namespace refrain::cuda
