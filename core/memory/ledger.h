// The ledger: who owns every byte. Totals and peaks per kind are always on; so is the composition of the peak
// by kind and module. Bytes are those asked for; rounding and holes are the arena's to report.
#pragma once

#include <refrain/core/context.h>

#include <array>
#include <cstdint>
#include <vector>

namespace refrain {

using BytesPerKind = std::array<std::int64_t, kNumMemoryKinds>;

// What an allocation is tagged with at birth. Only its kind may change later (a temporary that backward will read).
struct MemoryTag {
  MemoryKind kind = MemoryKind::temporary;
  Phase phase = Phase::forward;
  const ModulePath* module = ModulePath::root();
  std::string_view op;

  // Tag of an allocation made now by this thread.
  static MemoryTag current();
};

struct PeakEntry {
  MemoryKind kind;
  const ModulePath* module;
  std::int64_t bytes;
};

// Counts bytes for one device. Not thread-safe by itself: the device's lock guards it.
class Ledger {
 public:
  void add(const MemoryTag& tag, std::int64_t bytes);
  void remove(const MemoryTag& tag, std::int64_t bytes);
  void retag(MemoryTag& tag, MemoryKind kind, std::int64_t bytes);

  std::int64_t live_bytes() const { return live_; }
  std::int64_t live_bytes(MemoryKind kind) const { return live_per_kind_[std::size_t(kind)]; }
  std::int64_t live_count() const { return count_; }
  std::int64_t peak_bytes() const { return peak_; }
  // Nothing has come or gone since the peak was reached: it is made of what is alive now.
  bool is_at_peak() const { return at_peak_; }
  // The highest each kind ever reached by itself (their sum may exceed peak_bytes()).
  const BytesPerKind& peak_per_kind() const { return peak_per_kind_; }
  // How peak_bytes() was made up; the sum is peak_bytes() exactly.
  const BytesPerKind& kinds_at_peak() const;
  std::vector<PeakEntry> entries_at_peak() const;  // by kind and module, largest first

  // Forgets the peaks and starts again from what is alive now.
  void reset_peak();

 private:
  using Cells = std::vector<BytesPerKind>;  // indexed by module path id
  void keep_peak() const;

  std::int64_t live_ = 0, peak_ = 0, count_ = 0;
  BytesPerKind live_per_kind_{}, peak_per_kind_{};
  Cells cells_;
  // The peak's composition is copied only when bytes are about to leave the peak, not at every new maximum.
  mutable bool at_peak_ = false;
  mutable BytesPerKind kinds_at_peak_{};
  mutable Cells cells_at_peak_;
};

}  // namespace refrain
