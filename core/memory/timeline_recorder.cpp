#include <refrain/core/memory/timeline_recorder.h>

#include <refrain/core/check.h>

#include <algorithm>

namespace refrain::detail {

namespace {

// Blocks are ordered by id. Null where there is none.
MemoryBlock* find(std::vector<MemoryBlock>& blocks, std::uint64_t id) {
  const auto block = std::lower_bound(blocks.begin(), blocks.end(), id, [](const MemoryBlock& b, std::uint64_t wanted) { return b.id < wanted; });
  return block != blocks.end() && block->id == id ? &*block : nullptr;
}

MemoryBlock& known(std::vector<MemoryBlock>& blocks, std::uint64_t id) {
  MemoryBlock* block = find(blocks, id);
  invariant(block != nullptr, "timeline: block ", id, " is not known");
  return *block;
}

// Deaths of blocks of the peak that the timeline has seen since.
void copy_deaths(const std::vector<MemoryBlock>& from, std::vector<MemoryBlock>& peak) {
  auto block = from.begin();
  for (MemoryBlock& of_peak : peak) {
    while (block != from.end() && block->id < of_peak.id) ++block;
    if (block != from.end() && block->id == of_peak.id) of_peak.death = block->death;
  }
}

}  // namespace

TimelineRecorder::TimelineRecorder(const TimelineOptions& options, std::vector<MemoryBlock> alive, bool is_at_peak)
    : options_(options), start_(std::chrono::steady_clock::now()), num_alive_(alive.size()) {
  std::int64_t tick = 0;
  for (MemoryBlock& block : alive) block.birth = tick++;
  data_.blocks_ = std::move(alive);
  data_.first_tick_ = tick;
  data_.peak_tick_ = is_at_peak ? tick - 1 : -1;
  is_peak_kept_ = data_.peak_tick_ < 0;  // unknown, or of no block: nothing is to be found again
  make_room();
}

void TimelineRecorder::make_room() {
  std::vector<MemoryEvent>& events = data_.events_;
  const std::size_t needed = events.size() + num_alive_ + 2;  // a birth, and its own death
  if (events.capacity() < needed) events.reserve(2 * needed);
}

void TimelineRecorder::append(MemoryEvent::What what, const MemoryBlock& block) {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start_;
  data_.events_.push_back({what, block.tag.kind, block.id, seconds.count()});
}

void TimelineRecorder::add(MemoryBlock block, bool is_peak) {
  make_room();
  const std::int64_t tick = data_.end_tick();
  block.birth = tick;
  block.death = -1;
  block.first_kind = block.tag.kind;
  data_.blocks_.push_back(block);
  ++num_alive_;
  append(MemoryEvent::What::birth, block);
  if (!is_peak) return;
  data_.peak_tick_ = tick;
  is_peak_kept_ = false;
}

void TimelineRecorder::remove(std::uint64_t id) {
  MemoryBlock& block = known(data_.blocks_, id);
  block.death = data_.end_tick();
  --num_alive_;
  append(MemoryEvent::What::death, block);
}

void TimelineRecorder::set_kind(std::uint64_t id, MemoryKind kind) {
  make_room();
  MemoryBlock& block = known(data_.blocks_, id);
  block.tag.kind = kind;
  append(MemoryEvent::What::kind, block);
}

void TimelineRecorder::mark(std::string_view label) {
  std::vector<TimelineMark>& marks = data_.marks_;
  marks.push_back({data_.end_tick(), std::string(label)});
  if (options_.keep_marks == 0 || std::int64_t(marks.size()) <= options_.keep_marks) return;
  marks.erase(marks.begin(), marks.end() - std::ptrdiff_t(options_.keep_marks));
  forget_before(marks.front().tick);
}

void TimelineRecorder::forget_before(std::int64_t tick) {
  if (!is_peak_kept_ && data_.peak_tick_ < tick) {
    kept_peak_ = peak_blocks();
    is_peak_kept_ = true;
  }
  const auto end = data_.events_.begin() + std::ptrdiff_t(tick - data_.first_tick_);
  for (auto event = data_.events_.begin(); event != end; ++event) {
    if (event->what == MemoryEvent::What::kind) known(data_.blocks_, event->id).first_kind = event->kind;
  }
  data_.events_.erase(data_.events_.begin(), end);
  data_.first_tick_ = tick;
  copy_deaths(data_.blocks_, kept_peak_);
  std::erase_if(data_.blocks_, [tick](const MemoryBlock& block) { return block.death >= 0 && block.death < tick; });
}

void TimelineRecorder::reset_peak() {
  data_.peak_tick_ = data_.end_tick() - 1;
  is_peak_kept_ = data_.peak_tick_ < 0;
  kept_peak_.clear();
}

std::vector<MemoryBlock> TimelineRecorder::peak_blocks() const {
  const std::int64_t tick = data_.peak_tick_;
  std::vector<MemoryBlock> peak;
  for (const MemoryBlock& block : data_.blocks_) {
    if (!block.is_alive_at(tick)) continue;
    peak.push_back(block);
    peak.back().tag.kind = block.first_kind;
  }
  for (std::int64_t t = data_.first_tick_; t <= tick; ++t) {
    const MemoryEvent& event = data_.events_[std::size_t(t - data_.first_tick_)];
    if (event.what != MemoryEvent::What::kind) continue;
    if (MemoryBlock* block = find(peak, event.id)) block->tag.kind = event.kind;
  }
  return peak;
}

Timeline TimelineRecorder::timeline() const {
  Timeline copy = data_;
  copy.peak_ = is_peak_kept_ ? kept_peak_ : peak_blocks();
  if (is_peak_kept_) copy_deaths(copy.blocks_, copy.peak_);
  std::stable_sort(copy.peak_.begin(), copy.peak_.end(), [](const MemoryBlock& a, const MemoryBlock& b) { return a.bytes > b.bytes; });
  return copy;
}

}  // namespace refrain::detail
