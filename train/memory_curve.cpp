#include <refrain/train/memory_curve.h>

#include <refrain/core/check.h>
#include <refrain/train/plan.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <unordered_map>

namespace refrain {

namespace {

using Bytes = BytesPerKind;

std::int64_t total_of(const MemoryCurve& curve, std::size_t i) {
  std::int64_t total = 0;
  for (const auto& of_kind : curve.bytes) total += of_kind[i];
  return total;
}

void append(MemoryCurve& curve, std::int64_t tick, double seconds, const Bytes& bytes) {
  curve.ticks.push_back(tick);
  curve.seconds.push_back(seconds);
  for (std::size_t kind = 0; kind < bytes.size(); ++kind) curve.bytes[kind].push_back(bytes[kind]);
}

Bytes bytes_of(const MemoryCurve& curve, std::size_t i) {
  Bytes bytes{};
  for (std::size_t kind = 0; kind < bytes.size(); ++kind) bytes[kind] = curve.bytes[kind][i];
  return bytes;
}

MemoryCurve thinned(const MemoryCurve& curve, std::size_t most) {
  if (curve.size() <= most) return curve;
  check(most >= 4, "memory curve: expected at least 4 points, got ", most);
  const std::size_t stretches = (most - 2) / 2;
  MemoryCurve out;
  std::size_t last = 0;
  const auto keep = [&](std::size_t i) {
    append(out, curve.ticks[i], curve.seconds[i], bytes_of(curve, i));
    last = i;
  };
  keep(0);
  for (std::size_t s = 0; s < stretches; ++s) {
    const std::size_t begin = std::max<std::size_t>(1, s * curve.size() / stretches), end = (s + 1) * curve.size() / stretches;
    if (begin >= end) continue;
    std::size_t highest = begin, lowest = begin;
    for (std::size_t i = begin; i < end; ++i) {
      if (total_of(curve, i) > total_of(curve, highest)) highest = i;
      if (total_of(curve, i) < total_of(curve, lowest)) lowest = i;
    }
    keep(std::min(highest, lowest));
    if (highest != lowest) keep(std::max(highest, lowest));
  }
  if (last + 1 != curve.size()) keep(curve.size() - 1);
  return out;
}

// All points of the events of [begin, end).
MemoryCurve whole_curve(const Timeline& timeline, std::int64_t begin, std::int64_t end) {
  std::unordered_map<std::uint64_t, std::pair<std::int64_t, MemoryKind>> alive;  // bytes and kind now
  std::unordered_map<std::uint64_t, std::int64_t> sizes;
  Bytes now{};
  for (const MemoryBlock& block : timeline.blocks()) {
    sizes[block.id] = block.bytes;
    if (block.birth >= timeline.first_tick()) continue;
    alive[block.id] = {block.bytes, block.first_kind};
    now[std::size_t(block.first_kind)] += block.bytes;
  }
  MemoryCurve curve;
  for (std::size_t i = 0; i < timeline.events().size(); ++i) {
    const std::int64_t tick = timeline.first_tick() + std::int64_t(i);
    if (tick >= end) break;
    const MemoryEvent& event = timeline.events()[i];
    if (event.what != MemoryEvent::What::birth) {
      const auto block = alive.find(event.id);
      invariant(block != alive.end(), "memory curve: block ", event.id, " is not alive");
      now[std::size_t(block->second.second)] -= block->second.first;
      alive.erase(block);
    }
    if (event.what != MemoryEvent::What::death) {
      const std::int64_t bytes = sizes.at(event.id);
      alive[event.id] = {bytes, event.kind};
      now[std::size_t(event.kind)] += bytes;
    }
    if (tick >= begin) append(curve, tick, event.seconds, now);
  }
  return curve;
}

// N of "step N".
std::optional<std::int64_t> step_of(std::string_view label) {
  constexpr std::string_view kStep = "step ";
  std::int64_t step = 0;
  if (!label.starts_with(kStep)) return {};
  label.remove_prefix(kStep.size());
  const auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), step);
  return error == std::errc{} && end == label.data() + label.size() ? std::optional(step) : std::nullopt;
}

std::int64_t planned_mark(const Plan& plan, const std::string& label) {
  if (label == "evaluation") return plan.parts.evaluation;
  const std::optional<std::int64_t> step = step_of(label);
  if (!step) return -1;
  const bool is_last = *step % plan.steps_per_epoch == 0 && plan.parts.last_window >= 0;
  return is_last ? plan.parts.last_window : plan.parts.window;
}

}  // namespace

std::int64_t end_of_mark(const Timeline& timeline, std::size_t mark) {
  return mark + 1 < timeline.marks().size() ? timeline.marks()[mark + 1].tick : timeline.end_tick();
}

std::optional<TickRange> last_step(const Timeline& timeline) {
  for (std::size_t i = timeline.marks().size(); i-- > 0;)
    if (step_of(timeline.marks()[i].label)) return TickRange{timeline.marks()[i].tick, end_of_mark(timeline, i)};
  return {};
}

MemoryCurve memory_curve(const Timeline& timeline, std::int64_t begin, std::int64_t end, std::size_t most) {
  return thinned(whole_curve(timeline, begin, end), most);
}

MemoryCurve memory_curve(const Timeline& timeline, std::size_t most) {
  return memory_curve(timeline, timeline.first_tick(), timeline.end_tick(), most);
}

MemoryCurve planned_curve(const Timeline& measured, const Plan& plan, std::size_t most) {
  check(plan.timeline.has_value(), "planned_curve: the plan has no timeline");
  const Timeline& planned = *plan.timeline;
  const MemoryCurve all = whole_curve(planned, planned.first_tick(), planned.end_tick());
  MemoryCurve curve;
  for (std::size_t m = 0; m < measured.marks().size(); ++m) {
    const std::int64_t mark = planned_mark(plan, measured.marks()[m].label);
    if (mark < 0) continue;
    const std::int64_t begin = measured.marks()[m].tick, length = end_of_mark(measured, m) - begin;
    const std::int64_t from = planned.marks()[std::size_t(mark)].tick, planned_length = end_of_mark(planned, std::size_t(mark)) - from;
    // The two have the same events. Where the run was broken off, or windows are not whole in the plan, they need not.
    const bool is_same = length == planned_length || m + 1 == measured.marks().size();
    for (std::int64_t t = 0; t < planned_length; ++t) {
      const std::int64_t tick = begin + (is_same ? t : t * length / planned_length);
      if (tick >= begin + length) break;
      const std::size_t i = std::size_t(from + t - planned.first_tick());
      append(curve, tick, measured.events()[std::size_t(tick - measured.first_tick())].seconds, bytes_of(all, i));
    }
  }
  return thinned(curve, most);
}

}  // namespace refrain
