// Writes a Timeline as it happens. The device's lock guards it.
#pragma once

#include <refrain/core/memory/timeline.h>

#include <chrono>
#include <string_view>

namespace refrain::detail {

class TimelineRecorder {
 public:
  // `alive`: the blocks there are, by id, with the fields birth and death not yet set. `is_at_peak`: the ledger's peak is made of them.
  TimelineRecorder(const TimelineOptions& options, std::vector<MemoryBlock> alive, bool is_at_peak);

  // A block younger than all before it, whose birth and death are not yet set. `is_peak`: with it the ledger is at a new peak.
  void add(MemoryBlock block, bool is_peak);
  void remove(std::uint64_t id);
  void set_kind(std::uint64_t id, MemoryKind kind);
  void mark(std::string_view label);
  // The peak is what is alive now.
  void reset_peak();

  Timeline timeline() const;

 private:
  // Makes room for an event and, so that a release never has to ask for memory, for the deaths of all that is alive.
  void make_room();
  void append(MemoryEvent::What what, const MemoryBlock& block);
  // Forgets what was before that tick.
  void forget_before(std::int64_t tick);
  // The blocks of the peak, by id, found again from events and blocks.
  std::vector<MemoryBlock> peak_blocks() const;

  TimelineOptions options_;
  Timeline data_;  // without its peak
  std::chrono::steady_clock::time_point start_;
  std::size_t num_alive_ = 0;
  // The peak is only a tick until the events around it are to be forgotten; then its blocks are kept here, by id.
  bool is_peak_kept_ = false;
  std::vector<MemoryBlock> kept_peak_;
};

}  // namespace refrain::detail
