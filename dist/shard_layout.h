// How tensors are cut into one piece a rank, and how pieces lie in a message: rank after rank, and within a rank's section
// tensor after tensor. Internal.
#pragma once

#include <refrain/core/dtype.h>

#include <cstdint>
#include <span>
#include <vector>

namespace refrain::detail {

// Elements begin … end of a tensor: any size falls into pieces that differ by at most one element.
struct Piece {
  std::int64_t begin = 0, end = 0;
  std::int64_t numel() const { return end - begin; }
};
Piece piece_of(std::int64_t numel, int rank, int world_size);
// Elements of each rank's piece.
std::vector<std::int64_t> piece_counts(std::int64_t numel, int world_size);

class ShardLayout {
 public:
  // Tensors of these sizes. Pieces begin at multiples of 64 bytes; `num_marks` elements more end every section.
  ShardLayout(std::span<const std::int64_t> numels, DType dtype, int world_size, std::int64_t num_marks);

  DType dtype() const { return dtype_; }
  std::int64_t numel() const { return numel_; }                                         // of all sections
  const std::vector<std::int64_t>& counts() const { return counts_; }                   // of each section
  std::int64_t section(int rank) const { return begins_[std::size_t(rank)]; }           // where it begins
  Piece piece(std::size_t tensor, int rank) const { return piece_of(numels_[tensor], rank, int(counts_.size())); }
  // Where the piece begins, within its section.
  std::int64_t offset(std::size_t tensor, int rank) const { return offsets_[std::size_t(rank)][tensor]; }
  std::int64_t marks(int rank) const { return marks_[std::size_t(rank)]; }              // where they begin, within the section

 private:
  DType dtype_;
  std::vector<std::int64_t> numels_, counts_, begins_, marks_;
  std::vector<std::vector<std::int64_t>> offsets_;  // [rank][tensor]
  std::int64_t numel_ = 0;
};

}  // namespace refrain::detail
