#include <refrain/core/memory/packing.h>

#include <refrain/core/memory/arena.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace refrain {

namespace {

// Blocks that were placed, found by the time they are alive in. Time is cut into equal buckets; a block is listed in each
// it touches, or, when those are many, in one list of the long-lived.
class Placed {
 public:
  explicit Placed(std::span<const PackedBlock> blocks) : blocks_(blocks), seen_(blocks.size(), 0) {
    begin_ = std::numeric_limits<std::int64_t>::max();
    std::int64_t end = std::numeric_limits<std::int64_t>::min();
    for (const PackedBlock& block : blocks) {
      begin_ = std::min(begin_, block.birth);
      end = std::max(end, block.death);
    }
    length_ = std::max<std::int64_t>(end - begin_, 1);
    buckets_.resize(kBuckets);
  }

  void add(std::size_t index) {
    const auto [first, last] = buckets_of(blocks_[index]);
    if (last - first >= kLong) return long_lived_.push_back(index);
    for (std::size_t b = first; b <= last; ++b) buckets_[b].push_back(index);
  }

  // The lowest offset from `base` on at which the block overlaps none that is alive together with it.
  std::int64_t lowest_gap(std::size_t index, std::int64_t base) {
    const PackedBlock& block = blocks_[index];
    taken_.clear();
    ++round_;
    const auto consider = [&](std::size_t other) {
      if (seen_[other] == round_) return;
      seen_[other] = round_;
      const PackedBlock& b = blocks_[other];
      if (b.birth < block.death && block.birth < b.death) taken_.emplace_back(b.offset, b.offset + Arena::rounded(b.bytes));
    };
    for (const std::size_t other : long_lived_) consider(other);
    const auto [first, last] = buckets_of(block);
    for (std::size_t b = first; b <= last; ++b)
      for (const std::size_t other : buckets_[b]) consider(other);
    std::sort(taken_.begin(), taken_.end());
    std::int64_t offset = base;
    for (const auto& [begin, end] : taken_) {
      if (begin - offset >= Arena::rounded(block.bytes)) break;
      offset = std::max(offset, end);
    }
    return offset;
  }

 private:
  static constexpr std::size_t kBuckets = 1024, kLong = 128;

  std::pair<std::size_t, std::size_t> buckets_of(const PackedBlock& block) const {
    const auto bucket = [this](std::int64_t time) { return std::size_t(double(time - begin_) / double(length_) * double(kBuckets - 1)); };
    return {bucket(block.birth), bucket(block.death)};
  }

  std::span<const PackedBlock> blocks_;
  std::int64_t begin_ = 0, length_ = 1;
  std::vector<std::vector<std::size_t>> buckets_;
  std::vector<std::size_t> long_lived_;
  std::vector<std::uint32_t> seen_;  // the round in which a block was looked at
  std::uint32_t round_ = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> taken_;
};

std::int64_t place_in_order(std::span<PackedBlock> blocks, const std::vector<std::size_t>& order, std::int64_t base) {
  Placed placed(blocks);
  std::int64_t end = base;
  for (const std::size_t index : order) {
    PackedBlock& block = blocks[index];
    block.offset = base;
    if (block.bytes == 0 || block.death <= block.birth) continue;
    block.offset = placed.lowest_gap(index, base);
    placed.add(index);
    end = std::max(end, block.offset + Arena::rounded(block.bytes));
  }
  return end;
}

}  // namespace

namespace {

// Births and deaths in their order, each with size_of(block) that comes or goes; deaths come before births of the same time.
template <class Size>
std::vector<std::pair<std::int64_t, std::int64_t>> changes_of(std::span<const PackedBlock> blocks, Size&& size_of) {
  std::vector<std::pair<std::int64_t, std::int64_t>> changes;
  for (const PackedBlock& block : blocks) {
    if (block.death <= block.birth) continue;
    changes.emplace_back(block.birth, size_of(block));
    changes.emplace_back(block.death, -size_of(block));
  }
  std::sort(changes.begin(), changes.end());
  return changes;
}

}  // namespace

std::int64_t packing_bound(std::span<const PackedBlock> blocks) {
  std::int64_t live = 0, most = 0;
  for (const auto& [time, bytes] : changes_of(blocks, [](const PackedBlock& block) { return Arena::rounded(block.bytes); }))
    most = std::max(most, live += bytes);
  return most;
}

std::int64_t packing_work(std::span<const PackedBlock> blocks) {
  std::int64_t live = 0, pairs = 0;
  for (const auto& [time, count] : changes_of(blocks, [](const PackedBlock&) { return std::int64_t{1}; })) {
    if (count > 0) pairs += live;
    live += count;
  }
  return pairs;
}

std::int64_t pack(std::span<PackedBlock> blocks, std::int64_t base) {
  if (blocks.empty()) return base;
  const auto length = [&](std::size_t i) { return blocks[i].death - blocks[i].birth; };
  std::vector<std::size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return std::pair(blocks[a].bytes, length(a)) > std::pair(blocks[b].bytes, length(b));
  });
  const std::int64_t end = place_in_order(blocks, order, base), bound = base + packing_bound(blocks);
  if (end - bound <= bound / 100) return end;
  std::vector<PackedBlock> other(blocks.begin(), blocks.end());
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return length(a) > length(b); });
  const std::int64_t other_end = place_in_order(other, order, base);
  if (other_end >= end) return end;
  std::copy(other.begin(), other.end(), blocks.begin());
  return other_end;
}

}  // namespace refrain
