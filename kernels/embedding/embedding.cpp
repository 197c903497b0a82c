// Embedding: validation, cost and CPU code.
#include <refrain/core/parallel.h>
#include <refrain/kernels/common/simd.h>
#include <refrain/kernels/embedding/embedding.h>
#include <refrain/kernels/embedding/order.h>

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

// At most kColumnsPerPiece once there is enough work for several pieces.
std::int64_t columns_per_piece(std::int64_t count, std::int64_t width) {
  return std::max<std::int64_t>(1, count * width <= kElementsPerPiece ? width : kColumnsPerPiece);
}

template <class T, class Index>
void backward(const EmbeddingBackward& k) {
  const std::int64_t count = k.indices.numel(), width = k.out.dim(1), padding_idx = k.padding_idx;
  const Index* indices = k.indices.data<Index>();
  const T* grad_out = k.grad_out.data<T>();
  T* grad_weight = k.out.data<T>();
  // Pieces are columns: each goes through all indices in order, so no two write one element and the order is fixed.
  parallel_for(width, columns_per_piece(count, width), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t index = indices[i];
      if (index == padding_idx) continue;
      const T* from = grad_out + i * width;
      T* to = grad_weight + index * width;
      for (std::int64_t c = begin; c < end; ++c) to[c] += from[c];
    }
  });
}

// The same for a 16-bit table: positions are put in order of their indices first, so that a row's sum is complete, in f32,
// before it is rounded.
template <class S, class Index>
void backward_by_index(const EmbeddingBackward& k) {
  const std::int64_t count = k.indices.numel(), width = k.out.dim(1), padding_idx = k.padding_idx;
  const Index* indices = k.indices.data<Index>();
  const S* grad_out = k.grad_out.data<S>();
  S* grad_weight = k.out.data<S>();
  std::int64_t* order = k.order.data<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) order[i] = i;
  std::sort(order, order + count, [=](std::int64_t a, std::int64_t b) { return indices[a] != indices[b] ? indices[a] < indices[b] : a < b; });
  constexpr auto sum = [](auto, auto a, auto b) { return simd::hn::Add(a, b); };
  parallel_for(width, columns_per_piece(count, width), [=](std::int64_t piece_begin, std::int64_t piece_end) {
    HWY_ALIGN float row[kColumnsPerPiece];
    for (std::int64_t begin = piece_begin; begin < piece_end; begin += kColumnsPerPiece) {
      const std::int64_t n = std::min(kColumnsPerPiece, piece_end - begin);
      for (std::int64_t i = 0; i < count;) {
        const std::int64_t index = indices[order[i]];
        std::fill_n(row, n, 0.0f);
        for (; i < count && indices[order[i]] == index; ++i) simd::map(row, grad_out + order[i] * width + begin, row, n, sum);
        if (index != padding_idx) simd::copy(row, grad_weight + index * width + begin, n);
      }
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

std::int64_t EmbeddingBackward::num_order(DeviceKind target, std::int64_t num_indices, std::int64_t num_rows, DType table) {
  if (target != DeviceKind::cuda) return is_16_bit(table) ? num_indices : 0;
  return num_indices == 0 ? 0 : (embedding_kernels::OrderParts(num_indices, num_rows).end + 1) / 2;  // of 32-bit words
}

void validate(const EmbeddingBackward& k) {
  check_indices(k, k.out, "grad_weight", k.grad_out, "grad_out");
  const std::int64_t order = EmbeddingBackward::num_order(k.out.target(), k.indices.numel(), k.out.dim(0), k.out.dtype());
  if (order == 0) return;
  check(k.order.defined(), k.name, ": order must be given for a ", k.out.dtype(), " table");
  check_shape(k.name, "order", k.order, {order});
  check_dtype(k.name, "order", k.order, DType::i64);
  check_contiguous(k.name, "order", k.order);
}

Cost cost(const EmbeddingBackward& k) { return {double(k.grad_out.numel()), k.out.bytes() + 3 * k.grad_out.bytes() + k.indices.bytes()}; }

void run(Cpu, const EmbeddingBackward& k) {
  if (!k.out.has_bytes()) return;
  dispatch_floating(k.out.dtype(), k.name, [&](auto t) {
    using T = decltype(t);
    const auto run_with = [&](auto zero) {
      using Index = decltype(zero);
      check_range(k.name, k.indices.data<Index>(), k.indices.numel(), k.out.dim(0));
      T* out = k.out.data<T>();
      parallel_for(k.out.numel(), 4 * kElementsPerPiece, [=](std::int64_t begin, std::int64_t end) { std::fill(out + begin, out + end, T{}); });
      if constexpr (is_half<T>) backward_by_index<T, Index>(k);
      else backward<T, Index>(k);
    };
    k.indices.dtype() == DType::i64 ? run_with(std::int64_t{}) : run_with(std::int32_t{});
  });
}

}  // namespace refrain
