#include <refrain/core/check.h>
#include <refrain/core/memory/arena.h>

namespace refrain {

void Arena::add_hole(std::int64_t offset, std::int64_t length) {
  holes_.emplace(offset, length);
  holes_by_length_.emplace(length, offset);
}

void Arena::remove_hole(std::map<std::int64_t, std::int64_t>::iterator hole) {
  holes_by_length_.erase({hole->second, hole->first});
  holes_.erase(hole);
}

// The range grows up to `offset`; what it grew by is free.
void Arena::add_hole_at_top(std::int64_t offset) {
  std::int64_t start = top_;
  if (!holes_.empty()) {
    const auto last = std::prev(holes_.end());
    if (last->first + last->second == top_) {
      start = last->first;
      remove_hole(last);
    }
  }
  add_hole(start, offset - start);
  top_ = offset;
}

std::int64_t Arena::allocate(std::int64_t bytes) {
  if (bytes == 0) return 0;
  if (bytes < 0 || bytes > capacity_) return -1;
  const std::int64_t length = rounded(bytes);
  if (auto fit = holes_by_length_.lower_bound({length, -1}); fit != holes_by_length_.end()) {
    const auto [hole_length, offset] = *fit;
    remove_hole(holes_.find(offset));
    if (hole_length > length) add_hole(offset + length, hole_length - length);
    live_ += length;
    return offset;
  }
  // No hole is large enough: grow, starting in the last hole when it touches the top.
  std::int64_t start = top_;
  auto last = holes_.empty() ? holes_.end() : std::prev(holes_.end());
  const bool extends_hole = last != holes_.end() && last->first + last->second == top_;
  if (extends_hole) start = last->first;
  if (start + length > limit_) return -1;
  if (extends_hole) remove_hole(last);
  top_ = start + length;
  live_ += length;
  return start;
}

bool Arena::allocate_at(std::int64_t offset, std::int64_t bytes) {
  if (bytes == 0) return true;
  if (bytes < 0 || offset < 0 || offset % kAlignment != 0 || bytes > capacity_ || offset > capacity_) return false;
  const std::int64_t length = rounded(bytes), end = offset + length;
  if (end > top_ && end > limit_) return false;
  auto hole = holes_.upper_bound(offset);
  if (hole != holes_.begin() && offset < top_) {
    --hole;
    const auto [start, hole_length] = *hole;
    const std::int64_t hole_end = start + hole_length;
    // A block that begins in the last hole may end above the top.
    if (hole_end <= offset || (hole_end < end && hole_end != top_)) return false;
    remove_hole(hole);
    if (start < offset) add_hole(start, offset - start);
    if (end < hole_end) add_hole(end, hole_end - end);
  } else {
    if (offset < top_) return false;
    if (offset > top_) add_hole_at_top(offset);
  }
  if (end > top_) top_ = end;
  live_ += length;
  return true;
}

void Arena::trim() {
  if (holes_.empty()) return;
  const auto last = std::prev(holes_.end());
  if (last->first + last->second != top_) return;
  top_ = last->first;
  remove_hole(last);
}

void Arena::release(std::int64_t offset, std::int64_t bytes) {
  if (bytes == 0) return;
  std::int64_t length = rounded(bytes);
  invariant(length <= live_ && offset + length <= top_, "arena: released more than it holds");
  live_ -= length;
  auto next = holes_.lower_bound(offset);
  if (next != holes_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == offset) {
      offset = previous->first;
      length += previous->second;
      remove_hole(previous);
    }
  }
  if (next != holes_.end() && offset + length == next->first) {
    length += next->second;
    remove_hole(next);
  }
  add_hole(offset, length);
}

}  // namespace refrain
