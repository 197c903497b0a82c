// How a sum is cut up: shapes in, block sizes and index arithmetic out.
#pragma once

#include <refrain/core/shape.h>

#include <array>

namespace refrain {

// x seen as outer dims × `reduced` × `columns`: the innermost reduced dims and the kept ones behind them (columns is 1
// when the last dim is reduced). Outer dims alternate between kept and reduced.
struct SumPlan {
  struct Outer {
    std::int64_t extent;
    bool is_reduced;
  };
  std::array<Outer, kMaxDims> outer{};
  int num_outer = 0;
  std::int64_t reduced = 1, columns = 1;
  std::int64_t outer_count = 1;  // product of the outer extents
  std::int64_t outer_kept = 1;   // product of the kept ones
  std::int64_t block = 1;        // reduced elements summed at once
  std::int64_t num_blocks = 1;   // blocks of one run of `reduced`

  SumPlan(const Shape& x, const Shape& out);
  // A partial sum of each outer index, block and column has a place of its own unless it is the whole sum already.
  bool needs_scratch() const { return num_blocks > 1 || outer_kept != outer_count; }
  std::int64_t scratch_numel() const { return needs_scratch() ? outer_count * num_blocks * columns : 0; }
};

}  // namespace refrain
