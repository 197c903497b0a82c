#include <refrain/core/memory/layout.h>

#include <refrain/core/check.h>
#include <refrain/core/memory/packing.h>

#include <algorithm>

namespace refrain {

namespace {

// Beyond this packing would take more than about a second. So many blocks are small beside the whole, and the arena packs them
// within a percent by itself.
constexpr std::int64_t kMostWork = 20'000'000;

bool is_lasting(MemoryKind kind) { return kind == MemoryKind::parameter || kind == MemoryKind::optimizer_state || kind == MemoryKind::input; }

// One list of a layout, from its first entry to its last.
class Cursor {
 public:
  Cursor() = default;
  explicit Cursor(const std::vector<Layout::Entry>& entries) : entries_(&entries) {}

  std::int64_t next(std::int64_t bytes) {
    if (entries_ == nullptr) return -1;
    // Entries that do not come are passed over; what is not in the list leaves the place as it is.
    for (std::size_t i = at_; i < std::min(entries_->size(), at_ + kLookAhead); ++i) {
      if ((*entries_)[i].bytes != bytes) continue;
      at_ = i + 1;
      return (*entries_)[i].offset;
    }
    return -1;
  }

 private:
  static constexpr std::size_t kLookAhead = 8;
  const std::vector<Layout::Entry>* entries_ = nullptr;
  std::size_t at_ = 0;
};

class Follower : public Placement {
 public:
  explicit Follower(std::shared_ptr<const Layout> layout) : layout_(std::move(layout)), lasting_(layout_->lasting) { begin_section(""); }

  std::int64_t offset_for(std::int64_t bytes, const MemoryTag& tag) override {
    return (is_lasting(tag.kind) ? lasting_ : section_).next(Arena::rounded(bytes));
  }
  void begin_section(std::string_view key) override {
    const auto found = layout_->sections.find(key);
    section_ = found == layout_->sections.end() ? Cursor() : Cursor(found->second);
  }

 private:
  std::shared_ptr<const Layout> layout_;
  Cursor lasting_, section_;
};

}  // namespace

class LayoutRecorder::Listener : public Placement {
 public:
  explicit Listener(std::shared_ptr<std::vector<Section>> sections) : sections_(std::move(sections)) {}
  std::int64_t offset_for(std::int64_t, const MemoryTag&) override {
    ++count_;
    return -1;
  }
  void begin_section(std::string_view key) override { sections_->push_back({std::string(key), count_}); }

 private:
  std::shared_ptr<std::vector<Section>> sections_;
  std::size_t count_ = 0;
};

void begin_section(const Device& device, std::string_view key) {
  detail::DeviceState& state = device.state();
  std::lock_guard lock(state.mutex);
  if (state.placement) state.placement->begin_section(key);
}

std::unique_ptr<Placement> follow(std::shared_ptr<const Layout> layout) { return std::make_unique<Follower>(std::move(layout)); }

LayoutRecorder::LayoutRecorder(const Device& device)
    : device_(device), sections_(std::make_shared<std::vector<Section>>(std::vector<Section>{{"", 0}})) {
  check(device.live_count() == 0, "layout: a rehearsal needs a device that holds nothing");
  device.start_timeline();
  device.set_placement(std::make_unique<Listener>(sections_));
}

Layout LayoutRecorder::pack() const {
  const Timeline timeline = device_.timeline();
  std::vector<const MemoryBlock*> blocks;  // by number of allocation
  for (const MemoryBlock& block : timeline.blocks())
    if (block.bytes > 0) blocks.push_back(&block);
  const std::int64_t end_tick = timeline.end_tick();
  const auto begin_of = [&](std::size_t section) {  // in ticks
    const std::size_t first = section < sections_->size() ? (*sections_)[section].begin : blocks.size();
    return first < blocks.size() ? blocks[first]->birth : end_tick;
  };
  std::map<std::string, std::size_t, std::less<>> last_of;
  for (std::size_t i = 0; i < sections_->size(); ++i) last_of[(*sections_)[i].key] = i;

  Layout layout;
  std::vector<PackedBlock> packed;
  std::vector<std::pair<std::string_view, std::size_t>> entries;  // of packed blocks: section and place in it, or none
  for (std::size_t s = 0; s < sections_->size(); ++s) {
    const Section& section = (*sections_)[s];
    const bool is_chosen = last_of.at(section.key) == s;
    const std::size_t end = s + 1 < sections_->size() ? (*sections_)[s + 1].begin : blocks.size();
    const std::int64_t next_tick = begin_of(s + 1);
    std::vector<Layout::Entry>* list = is_chosen ? &layout.sections[section.key] : nullptr;
    for (std::size_t i = section.begin; i < end; ++i) {
      const MemoryBlock& block = *blocks[i];
      const std::int64_t bytes = Arena::rounded(block.bytes);
      if (is_lasting(block.first_kind)) {
        const bool stays = block.death < 0;
        layout.lasting.push_back({bytes, stays ? layout.end : -1});
        if (stays) layout.end += bytes;
        continue;
      }
      const std::int64_t death = block.death < 0 ? end_tick : block.death;
      if (!is_chosen && death < next_tick) continue;
      packed.push_back({.bytes = bytes, .birth = block.birth, .death = death});
      entries.emplace_back(section.key, list == nullptr ? std::size_t(-1) : list->size());
      if (list != nullptr) list->push_back({bytes, -1});
    }
  }
  if (packing_work(packed) > kMostWork) return {};
  layout.bound = layout.end + packing_bound(packed);
  layout.end = refrain::pack(packed, layout.end);
  for (std::size_t i = 0; i < packed.size(); ++i)
    if (entries[i].second != std::size_t(-1)) layout.sections.find(entries[i].first)->second[entries[i].second].offset = packed[i].offset;
  return layout;
}

}  // namespace refrain
