#include <refrain/train/remedies.h>

#include <refrain/core/check.h>
#include <refrain/train/report.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace refrain {

namespace {

std::string work_text(double share) {
  char text[40];
  if (std::abs(share) < 0.0005) return "no work";
  std::snprintf(text, sizeof text, "%+.1f %% work", 100 * share);
  return text;
}

// Flags, what they save of the peak and what is left of it and of the group, work, effect. `group_bytes` is -1 without a group.
std::string remedy_row(const Remedy& remedy, std::int64_t group_bytes) {
  const std::string group = group_bytes >= 0 ? concat(bytes_text(group_bytes), " of it left, ") : "";
  std::string flags = remedy.flags_text();
  flags.resize(std::max<std::size_t>(flags.size(), 52), ' ');
  return concat("      ", flags, " saves ", bytes_text(remedy.saved_bytes), ", peak ", bytes_text(remedy.peak_bytes), ", ", group,
                work_text(remedy.extra_flops_share), ", ", name_of(remedy.effect), "\n");
}

// Of one family those that no other beats in both bytes and work: the list is to be read, the JSON has all.
bool is_worth_showing(const Remedy& remedy, const std::vector<const Remedy*>& list) {
  if (remedy.saved_bytes <= 0) return false;
  return std::none_of(list.begin(), list.end(), [&](const Remedy* other) {
    return other->family == remedy.family && other->effect <= remedy.effect && other->peak_bytes < remedy.peak_bytes &&
           other->extra_flops_share < remedy.extra_flops_share + 0.001;
  });
}

}  // namespace

std::string receipt_text(const Receipt& receipt, const Remedies& remedies) {
  std::string out = concat("Receipt of the peak\n\n  ", receipt.peak_bytes, " bytes in ", receipt.lines.size(), " tensors; unknown: ",
                           receipt.unknown_bytes, "\n  reached at: ", receipt.moment, "\n\n");
  for (std::size_t i = 0; i < receipt.groups.size(); ++i) {
    const ReceiptGroup& group = receipt.groups[i];
    const double share = receipt.peak_bytes > 0 ? double(group.bytes) / double(receipt.peak_bytes) : 0;
    char text[100];
    std::snprintf(text, sizeof text, "  %16lld  %10s  %5.1f %%  %6lld x  ", static_cast<long long>(group.bytes),
                  bytes_text(group.bytes).c_str(), 100 * share, static_cast<long long>(group.count));
    out += concat(text, group.name, "\n");
    const std::vector<const Remedy*> list = remedies.of_group(receipt, i);
    for (const Remedy* remedy : list)
      if (is_worth_showing(*remedy, list)) out += remedy_row(*remedy, remedy->group_bytes[i]);
  }
  if (!remedies.combined.empty()) out += "\nTogether\n\n";
  for (const Remedy& remedy : remedies.combined) out += concat("  ", remedy.name, "\n", remedy_row(remedy, -1));
  return out;
}

}  // namespace refrain
