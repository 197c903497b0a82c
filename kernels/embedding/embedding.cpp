// Embedding: validation, cost and CPU code.
#include <refrain/core/parallel.h>
#include <refrain/kernels/embedding/embedding.h>

#include <algorithm>
#include <cstring>

namespace refrain {

namespace {

constexpr std::int64_t kElementsPerPiece = 32768;
// Columns that one piece of the backward sums: whole cache lines, so that pieces do not share them.
constexpr std::int64_t kColumnsPerPiece = 64;

Shape with_width(Shape shape, std::int64_t width) {
  shape.push_back(width);
  return shape;
}

template <class K>
void check_indices(const K& k, const TensorArg& table, std::string_view table_name, const TensorArg& rows, std::string_view rows_name) {
  check_floating(K::name, table_name, table);
  check_contiguous(K::name, table_name, table);
  check(table.num_dims() == 2, K::name, ": ", table_name, " must be [V, D], got ", table.shape());
  check(k.indices.dtype() == DType::i64 || k.indices.dtype() == DType::i32, K::name, ": indices must be i64 or i32, got ", k.indices.dtype());
  check_contiguous(K::name, "indices", k.indices);
  check_shape(K::name, rows_name, rows, with_width(k.indices.shape(), table.dim(1)));
  check_dtype(K::name, rows_name, rows, table.dtype());
  check_contiguous(K::name, rows_name, rows);
}

template <class Index>
void check_range(std::string_view kernel, const Index* indices, std::int64_t count, std::int64_t size) {
  for (std::int64_t i = 0; i < count; ++i) {
    check(indices[i] >= 0 && indices[i] < size, kernel, ": index ", i, " must be 0 … ", size - 1, ", got ", indices[i]);
  }
}

template <class Index>
void forward(const EmbeddingForward& k) {
  const std::int64_t count = k.indices.numel(), width = k.weight.dim(1);
  const Index* indices = k.indices.data<Index>();
  check_range(k.name, indices, count, k.weight.dim(0));
  const std::size_t row_bytes = std::size_t(width) * size_of(k.weight.dtype());
  const std::byte* weight = k.weight.address();
  std::byte* out = k.out.address();
  if (row_bytes == 0) return;
  parallel_for(count, std::max<std::int64_t>(1, kElementsPerPiece / width), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::memcpy(out + std::size_t(i) * row_bytes, weight + std::size_t(indices[i]) * row_bytes, row_bytes);
    }
  });
}

template <class T, class Index>
void backward(const EmbeddingBackward& k) {
  const std::int64_t count = k.indices.numel(), width = k.out.dim(1), padding_idx = k.padding_idx;
  const Index* indices = k.indices.data<Index>();
  check_range(k.name, indices, count, k.out.dim(0));
  const T* grad_out = k.grad_out.data<T>();
  T* grad_weight = k.out.data<T>();
  parallel_for(k.out.numel(), 4 * kElementsPerPiece, [=](std::int64_t begin, std::int64_t end) { std::fill(grad_weight + begin, grad_weight + end, T(0)); });
  // Pieces are columns: each goes through all indices in order, so no two write one element and the order is fixed.
  const std::int64_t piece = count * width <= kElementsPerPiece ? width : kColumnsPerPiece;
  parallel_for(width, std::max<std::int64_t>(piece, 1), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t index = indices[i];
      if (index == padding_idx) continue;
      const T* from = grad_out + i * width;
      T* to = grad_weight + index * width;
      for (std::int64_t c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

}  // namespace

void validate(const EmbeddingForward& k) { check_indices(k, k.weight, "weight", k.out, "out"); }

Cost cost(const EmbeddingForward& k) { return {0, 2 * k.out.bytes() + k.indices.bytes()}; }

void run(Cpu, const EmbeddingForward& k) {
  if (!k.out.has_bytes()) return;
  k.indices.dtype() == DType::i64 ? forward<std::int64_t>(k) : forward<std::int32_t>(k);
}

void validate(const EmbeddingBackward& k) { check_indices(k, k.out, "grad_weight", k.grad_out, "grad_out"); }

Cost cost(const EmbeddingBackward& k) { return {double(k.grad_out.numel()), k.out.bytes() + 3 * k.grad_out.bytes() + k.indices.bytes()}; }

void run(Cpu, const EmbeddingBackward& k) {
  if (!k.out.has_bytes()) return;
  dispatch_wide(k.out.dtype(), k.name, [&](auto t) {
    using T = decltype(t);
    k.indices.dtype() == DType::i64 ? backward<T, std::int64_t>(k) : backward<T, std::int32_t>(k);
  });
}

}  // namespace refrain
