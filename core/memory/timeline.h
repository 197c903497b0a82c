// Every allocation's birth and death. Opt-in (Device::start_timeline); bytes unknown to it: none.
//
// Time is counted in ticks, one per event. The state "at tick t" is the one after event t. Blocks that were alive when the
// timeline began count as born one tick each before its first event.
#pragma once

#include <refrain/core/memory/ledger.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace refrain {

// One allocation.
struct MemoryBlock {
  std::uint64_t id = 0;                // Storage::block(): rises with birth
  std::int64_t bytes = 0, offset = 0;  // as asked for; of its first byte in the arena
  MemoryTag tag;                       // as at birth; its kind is the last one (of a block of the peak: the one at the peak)
  std::int64_t birth = 0, death = -1;  // ticks; -1: alive at the end
  MemoryKind first_kind = MemoryKind::temporary;  // before the first event that is kept; of a block born later: at birth

  bool is_alive_at(std::int64_t tick) const { return birth <= tick && (death < 0 || tick < death); }
};

struct MemoryEvent {
  enum class What : std::uint8_t { birth, death, kind };
  What what;
  MemoryKind kind;      // from now on; of a death: the last
  std::uint64_t id;
  double seconds;       // since the timeline began
};

struct TimelineMark {
  std::int64_t tick;    // of the first event after it
  std::string label;    // such as "step 12" or "evaluation"
};

struct TimelineOptions {
  // Events before the last `keep_marks` marks are forgotten; blocks alive then keep their births. 0: all are kept.
  std::int64_t keep_marks = 0;
};

namespace detail {
class TimelineRecorder;
}

// A value: a copy of what was recorded. Members of a temporary are handed out by value, so that a loop over device.timeline().peak()
// is safe.
class Timeline {
 public:
  std::int64_t first_tick() const { return first_tick_; }  // of the first event that is kept
  std::int64_t end_tick() const { return first_tick_ + std::int64_t(events_.size()); }
  // All that were alive before or after an event that is kept, by id.
  const std::vector<MemoryBlock>& blocks() const& { return blocks_; }
  std::vector<MemoryBlock> blocks() && { return std::move(blocks_); }
  // Event i has tick first_tick() + i.
  const std::vector<MemoryEvent>& events() const& { return events_; }
  std::vector<MemoryEvent> events() && { return std::move(events_); }
  const std::vector<TimelineMark>& marks() const& { return marks_; }
  std::vector<TimelineMark> marks() && { return std::move(marks_); }

  // When the ledger reached its peak (since reset_peak): may lie before first_tick(). -1: before the timeline began, and what
  // was alive then is not known; reset_peak() after starting makes sure it is.
  std::int64_t peak_tick() const { return peak_tick_; }
  // What was alive at the peak, largest first. The bytes sum to Ledger::peak_bytes() and, kind by kind, to kinds_at_peak().
  const std::vector<MemoryBlock>& peak() const& { return peak_; }
  std::vector<MemoryBlock> peak() && { return std::move(peak_); }

 private:
  friend class detail::TimelineRecorder;
  std::int64_t first_tick_ = 0, peak_tick_ = -1;
  std::vector<MemoryBlock> blocks_, peak_;
  std::vector<MemoryEvent> events_;
  std::vector<TimelineMark> marks_;
};

}  // namespace refrain
