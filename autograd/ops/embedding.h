// Embedding: rows of a table.
#pragma once

#include <refrain/core/tensor.h>

#include <cstdint>
#include <optional>

namespace refrain {

// weight[indices]: indices of any shape, i64 or i32, weight [V, D] f64, f32, f16 or bf16; the result is indices.shape + [D]
// of weight's dtype. Gradients of equal indices are added in the order of the indices, for 16-bit tables in f32, rounded
// once; the row of padding_idx gets none. An index outside 0 … V-1 is an
// InvalidArgument naming its position. Saves the indices.
Tensor embedding(const Tensor& indices, const Tensor& weight, std::optional<std::int64_t> padding_idx = {});

}  // namespace refrain
