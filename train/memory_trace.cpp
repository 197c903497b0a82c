// Chrome's trace event format ("Trace Event Format", Google, 2016): counters, nested slices for parts of the program, and
// asynchronous slices for blocks.
#include <refrain/train/memory_export.h>

#include <refrain/core/check.h>
#include <refrain/train/memory_blocks.h>

#include <nlohmann/json.hpp>

#include <algorithm>

namespace refrain {

namespace {

using Json = nlohmann::ordered_json;

constexpr int kProgramProcess = 1, kFirstKindProcess = 2;

// Microseconds: a plan's ticks are shown as one each.
class Clock {
 public:
  explicit Clock(const MemoryExport& what) : timeline_(what.timeline), is_planned_(what.is_planned) {}
  double at(std::int64_t tick) const {
    const std::int64_t index = std::max<std::int64_t>(tick - timeline_.first_tick(), 0);
    if (is_planned_ || timeline_.events().empty()) return double(index);
    const std::size_t last = timeline_.events().size() - 1;
    return 1e6 * (timeline_.events()[std::min(std::size_t(index), last)].seconds - timeline_.events().front().seconds);
  }

 private:
  const Timeline& timeline_;
  bool is_planned_;
};

struct Event {
  std::int64_t tick;
  int order;  // at the same tick: ends before counters, counters before begins
  Json json;
};

Json named(const char* what, int process, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"ts", 0}, {"pid", process}, {"tid", 0}, {"args", {{"name", name}}}};
}

void add_counters(const MemoryCurve& curve, std::vector<Event>& events) {
  for (std::size_t i = 0; i < curve.size(); ++i) {
    Json values = Json::object();
    for (int kind = 0; kind < kNumMemoryKinds; ++kind) values[std::string(name_of(MemoryKind(kind)))] = curve.bytes[std::size_t(kind)][i];
    events.push_back(
        {curve.ticks[i], 1, {{"name", "bytes"}, {"ph", "C"}, {"pid", kProgramProcess}, {"tid", 0}, {"args", std::move(values)}}});
  }
}

void add_parts(const Timeline& timeline, std::vector<Event>& events) {
  for (std::size_t i = 0; i < timeline.marks().size(); ++i) {
    const std::int64_t begin = timeline.marks()[i].tick, end = end_of_mark(timeline, i);
    if (begin == end) continue;
    const auto event = [&](const char* phase) {
      return Json{{"name", timeline.marks()[i].label}, {"ph", phase}, {"pid", kProgramProcess}, {"tid", 1}};
    };
    events.push_back({begin, 2, event("B")});
    events.push_back({end, 0, event("E")});
  }
}

void add_blocks(const Timeline& timeline, std::vector<Event>& events) {
  const ExportedBlocks exported = exported_blocks(timeline);
  for (const MemoryBlock& block : exported.blocks) {
    const std::string& module = block.tag.module->text;
    const std::string name = concat(module.empty() ? "(outside modules)" : module, block.tag.op.empty() ? "" : " ", block.tag.op);
    const auto event = [&](const char* phase) {
      return Json{{"name", name},
                  {"cat", name_of(block.tag.kind)},
                  {"ph", phase},
                  {"id", std::to_string(block.id)},
                  {"pid", kFirstKindProcess + int(block.tag.kind)},
                  {"tid", 0}};
    };
    Json begin = event("b");
    begin["args"] = {{"bytes", block.bytes}, {"kind", name_of(block.tag.kind)}, {"phase", name_of(block.tag.phase)}, {"birth", block.birth},
                     {"death", block.death}};
    events.push_back({std::max(block.birth, exported.begin), 2, std::move(begin)});
    events.push_back({block.death < 0 ? exported.end : std::min(block.death, exported.end), 0, event("e")});
  }
}

}  // namespace

std::string memory_trace(const MemoryExport& what) {
  std::vector<Event> events;
  add_counters(memory_curve(what.timeline), events);
  add_parts(what.timeline, events);
  add_blocks(what.timeline, events);
  std::stable_sort(events.begin(), events.end(),
                   [](const Event& a, const Event& b) { return std::pair(a.tick, a.order) < std::pair(b.tick, b.order); });

  Json list = Json::array();
  list.push_back(named("process_name", kProgramProcess, what.title + ": program"));
  for (int kind = 0; kind < kNumMemoryKinds; ++kind)
    list.push_back(named("process_name", kFirstKindProcess + kind, std::string(plural_of(MemoryKind(kind)))));
  const Clock clock(what);
  for (Event& event : events) {
    event.json["ts"] = clock.at(event.tick);
    list.push_back(std::move(event.json));
  }
  constexpr const char* kTicks =
      "ticks, shown as microseconds: one for each allocation, release or change of kind. A plan has an order of events and no durations";
  const Json json = {{"displayTimeUnit", "ms"},
                     {"metadata",
                      {{"title", what.title},
                       {"planned", what.is_planned},
                       {"time", what.is_planned ? kTicks : "microseconds"},
                       {"peak_bytes", what.receipt.peak_bytes}}},
                     {"traceEvents", std::move(list)}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace refrain
