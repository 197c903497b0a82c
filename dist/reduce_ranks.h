// The ranks' parts added in rank order, as a process group promises its sums.
#pragma once

#include <refrain/dist/process_group.h>

#include <span>

namespace refrain::detail {

// `parts` are the ranks' bytes of `count` elements, rank 0's first; `out` may be one of them. Subnormals are flushed, as in all
// work on the pool.
void reduce_ranks(DType dtype, ReduceOp op, std::span<const std::byte* const> parts, std::byte* out, std::int64_t count);

}  // namespace refrain::detail
