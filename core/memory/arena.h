// The one door every tensor byte and every kernel's scratch goes through: one growing range of addresses, best fit
// with splitting and merging, nothing returned to the system. It deals in offsets, so every device runs this code.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>

namespace refrain {

class Arena {
 public:
  static constexpr std::int64_t kAlignment = 64;

  // `capacity` is the length of the address range. Bytes beyond `limit` are refused.
  explicit Arena(std::int64_t capacity) : capacity_(capacity), limit_(capacity) {}

  // Offset of a block of at least `bytes`, aligned to kAlignment; -1 when limit or range would be exceeded.
  // A request of 0 bytes takes no memory and returns 0.
  std::int64_t allocate(std::int64_t bytes);
  // Takes the block of `bytes` that begins at `offset`, a multiple of kAlignment. False, and nothing is changed, where any of
  // it is in use or lies beyond limit or range.
  bool allocate_at(std::int64_t offset, std::int64_t bytes);
  void release(std::int64_t offset, std::int64_t bytes);
  // Shortens the range to where its last block ends.
  void trim();

  static std::int64_t rounded(std::int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  std::int64_t live_bytes() const { return live_; }          // with rounding
  std::int64_t reserved_bytes() const { return top_; }       // length of the range in use, holes included
  std::int64_t largest_hole() const { return holes_by_length_.empty() ? 0 : holes_by_length_.rbegin()->first; }
  std::int64_t limit() const { return limit_; }
  void set_limit(std::int64_t bytes) { limit_ = bytes < capacity_ ? bytes : capacity_; }

 private:
  using Hole = std::pair<std::int64_t, std::int64_t>;  // {length, offset}: begin() of lower_bound is the best fit
  void add_hole(std::int64_t offset, std::int64_t length);
  void add_hole_at_top(std::int64_t offset);
  void remove_hole(std::map<std::int64_t, std::int64_t>::iterator hole);

  std::int64_t capacity_, limit_;
  std::int64_t top_ = 0, live_ = 0;
  std::map<std::int64_t, std::int64_t> holes_;  // offset -> length, no two adjacent
  std::set<Hole> holes_by_length_;
};

}  // namespace refrain
