#include <refrain/core/check.h>
#include <refrain/core/memory/ledger.h>

#include <algorithm>

namespace refrain {

MemoryTag MemoryTag::current() {
  const ThreadContext& context = thread_context();
  return {context.kind, context.phase, context.module, context.op};
}

void Ledger::add(const MemoryTag& tag, std::int64_t bytes) {
  const std::size_t kind = std::size_t(tag.kind);
  if (cells_.size() <= tag.module->id) cells_.resize(tag.module->id + 1);
  cells_[tag.module->id][kind] += bytes;
  live_per_kind_[kind] += bytes;
  peak_per_kind_[kind] = std::max(peak_per_kind_[kind], live_per_kind_[kind]);
  live_ += bytes;
  ++count_;
  if (live_ > peak_) {
    peak_ = live_;
    at_peak_ = true;
  } else if (bytes > 0) {
    at_peak_ = false;
  }
}

void Ledger::remove(const MemoryTag& tag, std::int64_t bytes) {
  if (at_peak_ && bytes > 0) keep_peak();
  cells_[tag.module->id][std::size_t(tag.kind)] -= bytes;
  live_per_kind_[std::size_t(tag.kind)] -= bytes;
  live_ -= bytes;
  --count_;
}

void Ledger::retag(MemoryTag& tag, MemoryKind kind, std::int64_t bytes) {
  if (tag.kind == kind) return;
  if (at_peak_ && bytes > 0) keep_peak();
  BytesPerKind& cell = cells_[tag.module->id];
  cell[std::size_t(tag.kind)] -= bytes;
  cell[std::size_t(kind)] += bytes;
  live_per_kind_[std::size_t(tag.kind)] -= bytes;
  live_per_kind_[std::size_t(kind)] += bytes;
  peak_per_kind_[std::size_t(kind)] = std::max(peak_per_kind_[std::size_t(kind)], live_per_kind_[std::size_t(kind)]);
  tag.kind = kind;
}

void Ledger::keep_peak() const {
  kinds_at_peak_ = live_per_kind_;
  cells_at_peak_ = cells_;
  at_peak_ = false;
}

const BytesPerKind& Ledger::kinds_at_peak() const {
  if (at_peak_) keep_peak();
  return kinds_at_peak_;
}

std::vector<PeakEntry> Ledger::entries_at_peak() const {
  if (at_peak_) keep_peak();
  std::vector<PeakEntry> entries;
  for (std::size_t module = 0; module < cells_at_peak_.size(); ++module) {
    for (std::size_t kind = 0; kind < std::size_t(kNumMemoryKinds); ++kind) {
      const std::int64_t bytes = cells_at_peak_[module][kind];
      if (bytes != 0) entries.push_back({MemoryKind(kind), ModulePath::by_id(std::uint32_t(module)), bytes});
    }
  }
  std::stable_sort(entries.begin(), entries.end(), [](const PeakEntry& a, const PeakEntry& b) { return a.bytes > b.bytes; });
  return entries;
}

void Ledger::reset_peak() {
  peak_ = live_;
  peak_per_kind_ = live_per_kind_;
  at_peak_ = true;
}

}  // namespace refrain
