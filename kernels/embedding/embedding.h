// Embedding: rows of a table picked by index, and the table's gradient. f64, f32, f16 and bf16.
#pragma once

#include <refrain/kernels/kernel.h>

namespace refrain {

// out[i, :] = weight[indices[i], :]. An index outside 0 … V-1 is an InvalidArgument that names its position, thrown
// before anything is written.
struct EmbeddingForward {
  static constexpr std::string_view name = "embedding";
  In indices, weight;        // any shape, i64 or i32; [V, D]
  Out out;                   // indices.shape + [D]
};
void validate(const EmbeddingForward& k);
Cost cost(const EmbeddingForward& k);
void run(Cpu, const EmbeddingForward& k);
void run(Cuda, const EmbeddingForward& k);

// grad_weight[v, :] = sum of grad_out[i, :] over the i with indices[i] == v, added in rising order of i.
// The row of padding_idx stays zero; -1 means there is none. For 16-bit tables a row's sum is kept in f32 and rounded once.
struct EmbeddingBackward {
  static constexpr std::string_view name = "embedding_backward";
  In grad_out, indices;      // indices.shape + [D]; any shape, i64 or i32
  std::int64_t padding_idx;
  Out out;                   // grad_weight [V, D]
  OptionalOut order = {};    // i64 [num_order()], scratch; needed where that is not 0
  // For so many indices into a table of num_rows rows of dtype `table`.
  static std::int64_t num_order(DeviceKind target, std::int64_t num_indices, std::int64_t num_rows, DType table);
};
void validate(const EmbeddingBackward& k);
Cost cost(const EmbeddingBackward& k);
void run(Cpu, const EmbeddingBackward& k);
void run(Cuda, const EmbeddingBackward& k);

}  // namespace refrain
