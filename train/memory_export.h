// Memory on disk, of a plan or of a run: memory.json (everything, exact), memory.csv (a row per tensor) and trace.json (Chrome's
// trace event format, which ui.perfetto.dev shows) for other programs, memory.svg and report.html to look at.
#pragma once

#include <refrain/train/memory_curve.h>
#include <refrain/train/remedies.h>

#include <filesystem>
#include <optional>
#include <string>

namespace refrain {

struct MemoryExport {
  std::string title;
  bool is_planned = true;  // then time is ticks: a plan knows the order of events and not their duration
  Config config;           // as resolved
  std::int64_t reserved_bytes = 0;
  Timeline timeline;
  Receipt receipt;
  Remedies remedies = {};
  std::optional<MemoryCurve> planned_curve = {};  // of a run: what the plan says about the same steps
  std::filesystem::path metrics = {};             // a run's metrics.jsonl; empty or absent: none
};

// One object; see docs/memory.md for its fields. Curves have at most kMostCurvePoints points. Blocks are those of the whole
// timeline, or, where there are more than 20,000, those of the last step; the blocks of the peak are always there. Metrics have
// at most 4,000 rows: of more, every k-th and the last.
std::string memory_json(const MemoryExport& what);

// id, bytes, kind, phase, module, op, birth, death, alive_at_peak. The blocks are memory_json's.
std::string memory_csv(const MemoryExport& what);

// A counter track per kind, a slice per part of the program, and a slice per block in a group per kind.
std::string memory_trace(const MemoryExport& what);

// Writes memory.json, memory.csv, trace.json, memory.svg and report.html into the directory, which is made.
void export_memory(const std::filesystem::path& directory, const MemoryExport& what);

}  // namespace refrain
