// What several ranks hold of one tensor, combined in rank order.
#pragma once

#include <refrain/kernels/kernel.h>

#include <span>

namespace refrain {

enum class ReduceOp : std::uint8_t { sum, mean, max };

// out[i] = op over the ranks' elements i, rank 0's first: f32, f64 and integers in their own type (integers wrap), f16 and bf16 in
// f32 with one rounding at the end. A mean divides the sum once, before the rounding; it is for floating dtypes. max of a NaN is
// NaN; bool has a max only. Subnormals are flushed, on every device.
struct ReduceRanks {
  static constexpr std::string_view name = "reduce_ranks";
  In own;     // [n] contiguous
  In others;  // [ranks - 1, n], the other ranks' parts in rank order; a row is contiguous, rows may lie apart
  int rank;   // where `own` stands among them
  ReduceOp op;
  Out out;  // [n] contiguous; may be `own` itself
};
void validate(const ReduceRanks&);
Cost cost(const ReduceRanks&);
void run(Cpu, const ReduceRanks&);
void run(Cuda, const ReduceRanks&);

namespace detail {

// The same on bytes in host memory, by the calling thread alone: `parts` are the ranks' `count` elements, rank 0's first; `out`
// may be one of them.
void reduce_ranks(DType dtype, ReduceOp op, std::span<const std::byte* const> parts, std::byte* out, std::int64_t count);

}  // namespace detail

}  // namespace refrain
