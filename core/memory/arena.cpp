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
