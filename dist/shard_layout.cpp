#include <refrain/dist/shard_layout.h>

namespace refrain::detail {

Piece piece_of(std::int64_t numel, int rank, int world_size) {
  // numel · rank may not fit where whole and rest do.
  const std::int64_t whole = numel / world_size, rest = numel % world_size;
  const auto begin_of = [&](std::int64_t r) { return whole * r + rest * r / world_size; };
  return {begin_of(rank), begin_of(rank + 1)};
}

std::vector<std::int64_t> piece_counts(std::int64_t numel, int world_size) {
  std::vector<std::int64_t> counts;
  for (int rank = 0; rank < world_size; ++rank) counts.push_back(piece_of(numel, rank, world_size).numel());
  return counts;
}

ShardLayout::ShardLayout(std::span<const std::int64_t> numels, DType dtype, int world_size, std::int64_t num_marks)
    : dtype_(dtype), numels_(numels.begin(), numels.end()) {
  const std::int64_t step = 64 / std::int64_t(size_of(dtype));
  const auto aligned = [&](std::int64_t n) { return (n + step - 1) / step * step; };
  for (int rank = 0; rank < world_size; ++rank) {
    std::vector<std::int64_t> offsets;
    std::int64_t at = 0;
    for (const std::int64_t numel : numels_) {
      offsets.push_back(at);
      at = aligned(at + piece_of(numel, rank, world_size).numel());
    }
    marks_.push_back(at);
    at = aligned(at + num_marks);
    offsets_.push_back(std::move(offsets));
    begins_.push_back(numel_);
    counts_.push_back(at);
    numel_ += at;
  }
}

}  // namespace refrain::detail
