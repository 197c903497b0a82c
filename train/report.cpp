#include <refrain/train/report.h>

#include <refrain/core/check.h>

#include <algorithm>
#include <cstdio>

namespace refrain {

namespace {

std::string row(const std::string& name, std::int64_t bytes, std::int64_t total) {
  std::string padded = name;
  padded.resize(std::max<std::size_t>(name.size(), 44), ' ');
  char text[100];
  std::snprintf(text, sizeof text, " %16lld  %11s  %5.1f %%\n", static_cast<long long>(bytes), bytes_text(bytes).c_str(),
                total > 0 ? 100 * double(bytes) / double(total) : 0.0);
  return concat("  ", padded, text);
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = double(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) value /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

std::string peak_report(const Ledger& ledger, std::int64_t reserved_bytes) {
  const std::int64_t peak = ledger.peak_bytes();
  std::string out =
      "Peak memory of tensors\n\n" + row("total", peak, peak) + row("reserved by the arena, holes included", reserved_bytes, peak);
  out += "\nBy kind, at the peak\n\n";
  for (int kind = 0; kind < kNumMemoryKinds; ++kind)
    if (const std::int64_t bytes = ledger.kinds_at_peak()[std::size_t(kind)]; bytes > 0)
      out += row(std::string(name_of(MemoryKind(kind))), bytes, peak);
  out += "\nBy module and kind, at the peak\n\n";
  for (const PeakEntry& entry : ledger.entries_at_peak())
    out += row(concat(entry.module->text.empty() ? "(outside modules)" : entry.module->text, "  ", name_of(entry.kind)), entry.bytes, peak);
  out += "\nHighest of each kind by itself, at whatever moment\n\n";
  for (int kind = 0; kind < kNumMemoryKinds; ++kind)
    if (const std::int64_t bytes = ledger.peak_per_kind()[std::size_t(kind)]; bytes > 0)
      out += row(std::string(name_of(MemoryKind(kind))), bytes, peak);
  return out;
}

std::string outside_arena_report(std::int64_t start_bytes, std::int64_t peak_bytes) {
  const std::int64_t most = std::max(start_bytes, peak_bytes);
  std::string out = "\nOutside the arena, as the system counts it\n\n" + row("at the start", start_bytes, most);
  if (peak_bytes >= 0) out += row("at the peak of the process", peak_bytes, most);
  return out;
}

std::string outside_arena_on_device_report(std::int64_t pinned_bytes, std::int64_t device_bytes) {
  const std::int64_t most = std::max(pinned_bytes, device_bytes);
  return row("of it pinned for copies to and from the device", pinned_bytes, most) + row("on the device", device_bytes, most);
}

}  // namespace refrain
