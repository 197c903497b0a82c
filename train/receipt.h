// The peak explained: every block alive at it with owner, birth and death, and what they add up to in groups. Nothing is
// unknown: the lines sum to the peak to the byte.
#pragma once

#include <refrain/core/memory/timeline.h>
#include <refrain/train/receipt_groups.h>

#include <string>
#include <vector>

namespace refrain {

// One tensor or scratch buffer.
struct ReceiptLine {
  std::uint64_t id = 0;
  std::int64_t bytes = 0;
  MemoryKind kind = MemoryKind::temporary;  // at the peak
  Phase phase = Phase::forward;             // in which it was made
  const ModulePath* module = ModulePath::root();
  std::string_view op;                      // that made it; empty outside ops
  std::int64_t birth = 0, death = -1;       // ticks; -1: not yet
  std::string born, died;                   // the same in words: "step 3, backward of linear"; of a death the op that allocated last
  std::size_t group = 0;                    // of Receipt::groups
};

struct ReceiptGroup {
  std::string name;     // "saved activations of blocks.*.mlp"
  MemoryKind kind = MemoryKind::temporary;
  std::string modules;  // "blocks.*.mlp"
  bool is_other = false;
  std::int64_t bytes = 0, count = 0;
};

struct Receipt {
  std::int64_t peak_bytes = 0;       // of the ledger
  std::int64_t unknown_bytes = 0;    // of it, in no line: 0, unless the timeline began after the peak
  std::int64_t tick = -1;
  std::string moment;                // "step 2, backward of linear in blocks.11.mlp.fc2": what was allocated at the peak
  std::vector<ReceiptLine> lines;    // largest first
  std::vector<ReceiptGroup> groups;  // of sorting.all(), largest first, "other" last
  ReceiptGroups sorting;
};

// Of the peak of a timeline, which the device's ledger counts as so many bytes.
Receipt make_receipt(const Timeline& timeline, std::int64_t peak_bytes);

// Every line, for a terminal.
std::string receipt_lines_text(const Receipt& receipt);

// The part of the program that a tick falls into: the label of the last mark before it.
std::string mark_at(const Timeline& timeline, std::int64_t tick);

}  // namespace refrain
