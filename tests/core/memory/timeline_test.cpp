// The timeline against an independent account of the same allocations.
#include <refrain/core/random.h>
#include <refrain/core/storage.h>
#include <refrain/core/tensor.h>
#include <refrain/tests/support/catch.h>

#include <map>

using namespace refrain;

namespace {

using Sums = BytesPerKind;

Sums sums_at(const Timeline& timeline, std::int64_t tick) {
  std::map<std::uint64_t, MemoryKind> kinds;
  for (const MemoryBlock& block : timeline.blocks()) kinds[block.id] = block.first_kind;
  for (std::int64_t t = timeline.first_tick(); t <= tick; ++t) {
    const MemoryEvent& event = timeline.events()[std::size_t(t - timeline.first_tick())];
    kinds.at(event.id) = event.kind;
  }
  Sums sums{};
  for (const MemoryBlock& block : timeline.blocks()) {
    if (block.is_alive_at(tick)) sums[std::size_t(kinds.at(block.id))] += block.bytes;
  }
  return sums;
}

Sums live_sums(const Ledger& ledger) {
  Sums sums{};
  for (int kind = 0; kind < kNumMemoryKinds; ++kind) sums[std::size_t(kind)] = ledger.live_bytes(MemoryKind(kind));
  return sums;
}

std::int64_t total(const Sums& sums) {
  std::int64_t sum = 0;
  for (const std::int64_t bytes : sums) sum += bytes;
  return sum;
}

// What must hold of the peak whenever it is known.
void check_peak(const Device& device) {
  const Timeline timeline = device.timeline();
  const Ledger ledger = device.ledger();
  Sums sums{};
  std::int64_t before = timeline.peak().empty() ? 0 : timeline.peak().front().bytes;
  std::map<std::pair<const ModulePath*, MemoryKind>, std::int64_t> cells;
  for (const MemoryBlock& block : timeline.peak()) {
    CHECK(block.is_alive_at(timeline.peak_tick()));
    CHECK(block.bytes <= before);
    before = block.bytes;
    sums[std::size_t(block.tag.kind)] += block.bytes;
    if (block.bytes > 0) cells[{block.tag.module, block.tag.kind}] += block.bytes;
  }
  CHECK(total(sums) == ledger.peak_bytes());
  CHECK(sums == ledger.kinds_at_peak());
  std::map<std::pair<const ModulePath*, MemoryKind>, std::int64_t> expected;
  for (const PeakEntry& entry : ledger.entries_at_peak()) expected[{entry.module, entry.kind}] = entry.bytes;
  CHECK(cells == expected);
}

// Allocates, frees, saves and retags at random, and writes down what is alive after every event of a device's timeline.
class Player {
 public:
  Player(const Device& device, std::uint64_t seed) : device_(device), key_{.seed = seed} {}

  void play(int moves) {
    for (int i = 0; i < moves; ++i) move();
  }

  std::vector<Sums> after;  // one per event

  void drop_all() {
    while (!held_.empty()) drop(held_.size() - 1);
  }

 private:
  std::uint32_t draw() { return key_.word(counter_++); }
  void note() { after.push_back(live_sums(device_.ledger())); }
  void drop(std::size_t index) {
    if (held_[index].is_saved) {
      const bool changes = held_[index].storage->tag().kind == MemoryKind::saved;
      held_[index].storage->remove_saved();
      if (changes) note();
    }
    held_.erase(held_.begin() + std::ptrdiff_t(index));
    note();
  }
  void move() {
    const std::uint32_t what = draw() % 10;
    if (held_.empty() || what < 5) {
      const ModuleScope module(draw() % 2 == 0 ? "a" : "b");
      const KindScope kind(draw() % 4 == 0 ? MemoryKind::workspace : draw() % 3 == 0 ? MemoryKind::gradient : MemoryKind::temporary);
      held_.push_back({Storage::allocate(device_, draw() % 8 == 0 ? 0 : draw() % 3000), false});
      note();
      return;
    }
    const std::size_t index = draw() % held_.size();
    Held& held = held_[index];
    if (what < 8) return drop(index);
    const MemoryKind before = held.storage->tag().kind;
    if (what == 8 && !held.is_saved) {
      held.storage->add_saved();
      held.is_saved = true;
    } else {
      held.storage->set_kind(MemoryKind::gradient);
    }
    if (held.storage->tag().kind != before) note();
  }

  struct Held {
    std::shared_ptr<Storage> storage;
    bool is_saved;
  };
  Device device_;
  RandomKey key_;
  std::uint64_t counter_ = 0;
  std::vector<Held> held_;
};

}  // namespace

TEST_CASE("timeline: the blocks alive at each tick sum to the ledger's live bytes, kind by kind") {
  for (const bool is_plan : {false, true}) {
    for (std::uint64_t seed = 1; seed <= 5; ++seed) {
      const Device device = is_plan ? Device::plan() : Device::new_cpu();
      device.start_timeline();
      Player player(device, seed);
      player.play(300);
      const Timeline timeline = device.timeline();
      REQUIRE(timeline.first_tick() == 0);
      REQUIRE(timeline.end_tick() == std::int64_t(player.after.size()));
      for (std::int64_t tick = 0; tick < timeline.end_tick(); ++tick) REQUIRE(sums_at(timeline, tick) == player.after[std::size_t(tick)]);
      check_peak(device);
    }
  }
}

TEST_CASE("timeline: the peak is exact at every moment, after every reset of the peak, and when all have died") {
  const Device device = Device::plan();
  device.start_timeline();
  check_peak(device);
  Player player(device, 7);
  for (int round = 0; round < 60; ++round) {
    player.play(7);
    check_peak(device);
    if (round % 9 == 8) {
      device.reset_peak();
      check_peak(device);
      CHECK(device.timeline().peak_tick() == device.timeline().end_tick() - 1);
    }
  }
  player.drop_all();
  check_peak(device);
  for (const MemoryBlock& block : device.timeline().peak()) CHECK(block.death > device.timeline().peak_tick());
  device.reset_peak();
  check_peak(device);
  CHECK(device.timeline().peak().empty());
}

TEST_CASE("timeline: begun midway it knows the blocks that are alive, with their ids and tags") {
  const Device device = Device::new_cpu();
  Player player(device, 3);
  player.play(200);
  const std::shared_ptr<Storage> known = [&] {
    const ModuleScope module("named");
    return Storage::allocate(device, 77);
  }();
  device.reset_peak();
  device.start_timeline();
  CHECK(device.has_timeline());
  const std::int64_t alive = device.live_count();
  CHECK(device.timeline().first_tick() == alive);
  CHECK(std::int64_t(device.timeline().blocks().size()) == alive);
  const MemoryBlock last = device.timeline().blocks().back();
  CHECK(last.id == known->birth());
  CHECK(last.offset == known->offset());
  CHECK(last.tag.module->text == "named");
  CHECK(last.birth == alive - 1);
  check_peak(device);

  player.after.clear();
  player.play(200);
  const Timeline timeline = device.timeline();
  REQUIRE(timeline.end_tick() - timeline.first_tick() == std::int64_t(player.after.size()));
  for (std::size_t i = 0; i < player.after.size(); ++i)
    REQUIRE(sums_at(timeline, timeline.first_tick() + std::int64_t(i)) == player.after[i]);
  check_peak(device);
}

TEST_CASE("timeline: a peak older than the timeline is unknown until the peak is reset or passed") {
  const Device device = Device::plan();
  const std::shared_ptr<Storage> kept = Storage::allocate(device, 100);
  Storage::allocate(device, 1000);
  device.start_timeline();
  CHECK(device.timeline().peak_tick() == -1);
  CHECK(device.timeline().peak().empty());
  Storage::allocate(device, 1500);
  check_peak(device);
  device.start_timeline();
  device.reset_peak();
  check_peak(device);
  CHECK(device.timeline().peak_tick() == 0);
  CHECK(device.timeline().peak().size() == 1);
}

TEST_CASE("timeline: forgetting all but the last marks keeps the state, the kinds and the peak") {
  for (const std::int64_t keep : {1, 3}) {
    const Device device = Device::plan();
    Player player(device, 11 + std::uint64_t(keep));
    player.play(40);
    device.reset_peak();
    player.after.clear();
    device.start_timeline({.keep_marks = keep});
    const std::int64_t begin = device.timeline().first_tick();
    std::vector<std::int64_t> marked;
    for (int step = 0; step < 30; ++step) {
      marked.push_back(device.timeline().end_tick());
      device.mark("step " + std::to_string(step));
      player.play(step == 8 ? 120 : 25);  // the peak lies far behind in the end
      const Timeline timeline = device.timeline();
      const std::size_t num_marks = std::size_t(std::min<std::int64_t>(keep, step + 1));
      REQUIRE(timeline.marks().size() == num_marks);
      CHECK(timeline.marks().back().label == "step " + std::to_string(step));
      CHECK(timeline.marks().back().tick == marked.back());
      if (step >= keep) CHECK(timeline.first_tick() == marked[marked.size() - num_marks]);
      REQUIRE(timeline.end_tick() - begin == std::int64_t(player.after.size()));
      for (std::int64_t t = timeline.first_tick(); t < timeline.end_tick(); t += 5)
        REQUIRE(sums_at(timeline, t) == player.after[std::size_t(t - begin)]);
      check_peak(device);
    }
    std::int64_t died = 0;
    player.drop_all();
    device.mark("end");
    for (const MemoryBlock& block : device.timeline().peak()) died += block.death >= 0;
    CHECK(died == std::int64_t(device.timeline().peak().size()));
    check_peak(device);
  }
}

TEST_CASE("timeline: births, changes of kind and deaths are events with rising time") {
  const Device device = Device::plan();
  device.start_timeline();
  {
    const Tensor t = empty({16}, DType::f32, device);
    t.storage()->add_saved();
    t.storage()->remove_saved();
  }
  const Timeline timeline = device.timeline();
  REQUIRE(timeline.events().size() == 4);
  using What = MemoryEvent::What;
  const What what[] = {What::birth, What::kind, What::kind, What::death};
  const MemoryKind kinds[] = {MemoryKind::temporary, MemoryKind::saved, MemoryKind::temporary, MemoryKind::temporary};
  double seconds = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(timeline.events()[i].what == what[i]);
    CHECK(timeline.events()[i].kind == kinds[i]);
    CHECK(timeline.events()[i].id == timeline.blocks().at(0).id);
    CHECK(timeline.events()[i].seconds >= seconds);
    seconds = timeline.events()[i].seconds;
  }
  CHECK(timeline.blocks()[0].birth == 0);
  CHECK(timeline.blocks()[0].death == 3);
  CHECK(timeline.blocks()[0].bytes == 64);
}

TEST_CASE("timeline: one that does not run is refused, marks are then ignored, and one that runs is begun anew") {
  const Device device = Device::plan();
  CHECK_THROWS_AS(device.timeline(), InvalidArgument);
  CHECK_THROWS_AS(device.start_timeline({.keep_marks = -1}), InvalidArgument);
  device.mark("nobody listens");
  CHECK_FALSE(device.has_timeline());
  device.start_timeline();
  const std::shared_ptr<Storage> a = Storage::allocate(device, 10);
  device.mark("a");
  CHECK(device.timeline().events().size() == 1);
  device.start_timeline();
  CHECK(device.timeline().events().empty());
  CHECK(device.timeline().marks().empty());
  CHECK(device.timeline().blocks().size() == 1);
  device.stop_timeline();
  CHECK_FALSE(device.has_timeline());
}
