// How the CUDA kernels of embedding's backward divide their scratch, in 32-bit words: positions before and after a pass of the
// radix sort, each block's counts of digits, and where each row's positions start.
#pragma once

#include <cstdint>

namespace refrain::embedding_kernels {

inline constexpr int kDigitBits = 8, kDigits = 1 << kDigitBits;
inline constexpr int kChunk = 1024;  // positions a block sorts

struct OrderParts {
  std::int64_t second, counts, starts, end;  // the first positions are at 0
  constexpr OrderParts(std::int64_t num_indices, std::int64_t num_rows)
      : second(num_indices),
        counts(2 * num_indices),
        starts(counts + kDigits * ((num_indices + kChunk - 1) / kChunk)),
        end(starts + num_rows + 1) {}
};

}  // namespace refrain::embedding_kernels
