#include <refrain/train/receipt.h>

#include <refrain/core/check.h>
#include <refrain/train/report.h>

#include <algorithm>
#include <cstdio>
#include <map>

namespace refrain {

namespace {

std::string activity(Phase phase, std::string_view op) {
  if (op.empty()) return phase == Phase::forward ? "" : std::string(name_of(phase));
  return concat(name_of(phase), " of ", op);
}

std::string joined(const std::string& mark, const std::string& what) {
  return mark.empty() || what.empty() ? mark + what : concat(mark, ", ", what);
}

// Finds what allocated last before a tick.
class Births {
 public:
  explicit Births(const Timeline& timeline) {
    for (const MemoryBlock& block : timeline.blocks()) by_tick_.push_back(&block);
    std::sort(by_tick_.begin(), by_tick_.end(), [](const MemoryBlock* a, const MemoryBlock* b) { return a->birth < b->birth; });
  }
  const MemoryBlock* last_before(std::int64_t tick) const {
    const auto after =
        std::partition_point(by_tick_.begin(), by_tick_.end(), [tick](const MemoryBlock* block) { return block->birth < tick; });
    return after == by_tick_.begin() ? nullptr : *(after - 1);
  }

 private:
  std::vector<const MemoryBlock*> by_tick_;
};

std::string death_text(const Timeline& timeline, const Births& births, std::int64_t death) {
  if (death < 0) return "alive at the end";
  const std::string mark = mark_at(timeline, death);
  if (death < timeline.first_tick()) return mark;
  // Births before the mark belong to another part of the program.
  const MemoryBlock* last = births.last_before(death);
  return last && mark_at(timeline, last->birth) == mark ? joined(mark, activity(last->tag.phase, last->tag.op)) : mark;
}

std::string module_text(const ModulePath* module) { return module->text.empty() ? "(outside modules)" : module->text; }

}  // namespace

std::string mark_at(const Timeline& timeline, std::int64_t tick) {
  const std::vector<TimelineMark>& marks = timeline.marks();
  const auto after = std::partition_point(marks.begin(), marks.end(), [tick](const TimelineMark& mark) { return mark.tick <= tick; });
  if (after != marks.begin()) return (after - 1)->label;
  return marks.empty() ? "" : concat("before ", marks.front().label);
}

Receipt make_receipt(const Timeline& timeline, std::int64_t peak_bytes) {
  Receipt receipt;
  receipt.peak_bytes = receipt.unknown_bytes = peak_bytes;
  receipt.tick = timeline.peak_tick();
  std::map<std::pair<MemoryKind, const ModulePath*>, std::int64_t> sums;
  for (const MemoryBlock& block : timeline.peak()) {
    receipt.unknown_bytes -= block.bytes;
    sums[{block.tag.kind, block.tag.module}] += block.bytes;
  }
  std::vector<PeakEntry> entries;
  for (const auto& [key, bytes] : sums) entries.push_back({key.first, key.second, bytes});
  receipt.sorting = ReceiptGroups(entries);
  for (const ReceiptGroups::Group& group : receipt.sorting.all())
    receipt.groups.push_back({group.name, group.kind, group.modules, group.is_other});

  const Births births(timeline);
  for (const MemoryBlock& block : timeline.peak()) {
    if (block.birth == receipt.tick)
      receipt.moment =
          concat(joined(mark_at(timeline, block.birth), activity(block.tag.phase, block.tag.op)), " in ", module_text(block.tag.module));
    if (block.bytes == 0) continue;
    const std::size_t index = receipt.sorting.find(block.tag.kind, block.tag.module);
    ReceiptGroup& group = receipt.groups[index];
    group.bytes += block.bytes;
    ++group.count;
    receipt.lines.push_back({block.id, block.bytes, block.tag.kind, block.tag.phase, block.tag.module, block.tag.op, block.birth,
                             block.death, joined(mark_at(timeline, block.birth), activity(block.tag.phase, block.tag.op)),
                             death_text(timeline, births, block.death), index});
  }
  if (receipt.moment.empty()) receipt.moment = mark_at(timeline, receipt.tick);
  return receipt;
}

std::string receipt_lines_text(const Receipt& receipt) {
  std::string out = "Every tensor at the peak, largest first\n\n";
  for (const ReceiptLine& line : receipt.lines) {
    char text[100];
    std::snprintf(text, sizeof text, "  %12lld  %11s  %-16s ", static_cast<long long>(line.bytes), bytes_text(line.bytes).c_str(),
                  std::string(name_of(line.kind)).c_str());
    std::string module = module_text(line.module);
    module.resize(std::max<std::size_t>(module.size(), 32), ' ');
    out += concat(text, module, " ", line.born, "; until ", line.died, "\n");
  }
  return out;
}

}  // namespace refrain
