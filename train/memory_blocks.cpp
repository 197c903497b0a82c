#include <refrain/train/memory_blocks.h>

#include <refrain/train/memory_curve.h>

#include <algorithm>
#include <array>
#include <unordered_map>

namespace refrain {

namespace {

struct Kinds {
  MemoryKind now = MemoryKind::temporary;
  std::int64_t since = 0;
  std::array<std::int64_t, std::size_t(kNumMemoryKinds)> ticks{};

  void change(MemoryKind kind, std::int64_t tick) {
    ticks[std::size_t(now)] += tick - since;
    now = kind;
    since = tick;
  }
};

}  // namespace

ExportedBlocks exported_blocks(const Timeline& timeline, std::size_t most) {
  ExportedBlocks out{timeline.first_tick(), timeline.end_tick(), {}};
  if (timeline.blocks().size() > most) {
    if (const std::optional<TickRange> step = last_step(timeline)) out.begin = step->begin, out.end = step->end;
  }
  std::unordered_map<std::uint64_t, Kinds> kinds;
  for (const MemoryBlock& block : timeline.blocks()) kinds[block.id] = {block.first_kind, std::max(block.birth, timeline.first_tick())};
  for (std::size_t i = 0; i < timeline.events().size(); ++i) {
    const MemoryEvent& event = timeline.events()[i];
    if (event.what != MemoryEvent::What::birth) kinds.at(event.id).change(event.kind, timeline.first_tick() + std::int64_t(i));
  }
  for (const MemoryBlock& block : timeline.blocks()) {
    if (block.birth >= out.end || (block.death >= 0 && block.death < out.begin)) continue;
    Kinds& of_block = kinds.at(block.id);
    of_block.change(of_block.now, block.death >= 0 ? block.death : timeline.end_tick());
    out.blocks.push_back(block);
    const auto longest = std::max_element(of_block.ticks.begin(), of_block.ticks.end());
    if (*longest > 0) out.blocks.back().tag.kind = MemoryKind(longest - of_block.ticks.begin());
  }
  return out;
}

}  // namespace refrain
