// Packed offsets, checked pair by pair, and programs that follow them.
#include <refrain/core/check.h>
#include <refrain/core/memory/layout.h>
#include <refrain/core/memory/packing.h>
#include <refrain/core/random.h>
#include <refrain/core/storage.h>
#include <refrain/tests/support/catch.h>

using namespace refrain;

namespace {

void check_apart(const std::vector<PackedBlock>& blocks, std::int64_t base, std::int64_t end) {
  std::int64_t highest = base;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const PackedBlock& a = blocks[i];
    REQUIRE(a.offset >= base);
    REQUIRE(a.offset % Arena::kAlignment == 0);
    if (a.bytes == 0 || a.death <= a.birth) continue;
    highest = std::max(highest, a.offset + Arena::rounded(a.bytes));
    for (std::size_t j = i + 1; j < blocks.size(); ++j) {
      const PackedBlock& b = blocks[j];
      const bool meet = a.birth < b.death && b.birth < a.death && b.bytes > 0 && b.birth < b.death;
      if (meet) REQUIRE((a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset));
    }
  }
  CHECK(highest == end);
}

std::vector<PackedBlock> random_blocks(std::uint64_t seed, int count, std::int64_t life) {
  const RandomKey key{.seed = seed};
  std::vector<PackedBlock> blocks;
  for (std::uint64_t i = 0; i < std::uint64_t(count); ++i) {
    const std::int64_t birth = std::int64_t(key.word(3 * i) % 3000), length = key.word(3 * i + 1) % std::uint32_t(life);
    blocks.push_back({.bytes = key.word(3 * i + 2) % 7 == 0 ? 0 : 1 + key.word(3 * i + 2) % 5000, .birth = birth, .death = birth + length});
  }
  return blocks;
}

// A program of a fixed shape: two lasting blocks, then steps of blocks that overlap in a way best fit does badly with.
class Program {
 public:
  explicit Program(const Device& on) : device(on) {
    const KindScope kind(MemoryKind::parameter);
    kept.push_back(Storage::allocate(device, 1000));
    kept.push_back(Storage::allocate(device, 500));
  }
  void step(std::int64_t extra = 0) {
    begin_section(device, "step");
    auto a = Storage::allocate(device, 640);
    auto b = Storage::allocate(device, 6400 + extra);
    a.reset();
    auto c = Storage::allocate(device, 1280);
    b.reset();
    auto d = Storage::allocate(device, 7700);
    if (kept.size() == 2) {  // as an optimizer does in the first step
      const KindScope kind(MemoryKind::optimizer_state);
      kept.push_back(Storage::allocate(device, 2000));
    }
  }
  void evaluate() {
    begin_section(device, "evaluate");
    auto a = Storage::allocate(device, 3000);
    auto b = Storage::allocate(device, 100);
    a.reset();
    auto c = Storage::allocate(device, 4000);
  }
  Device device;
  std::vector<std::shared_ptr<Storage>> kept;
};

Layout rehearse() {
  const Device device = Device::plan();
  const LayoutRecorder recorder(device);
  Program program(device);
  for (int i = 0; i < 3; ++i) program.step();
  program.evaluate();
  return recorder.pack();
}

}  // namespace

TEST_CASE("packing: nothing to pack ends where it begins") {
  CHECK(pack({}, 64) == 64);
  CHECK(packing_bound({}) == 0);
  CHECK(packing_work({}) == 0);
}

TEST_CASE("packing: no two blocks that are alive together overlap, and none lies below the base") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    for (const std::int64_t life : {2, 50, 3000}) {
      std::vector<PackedBlock> blocks = random_blocks(seed, 400, life);
      const std::int64_t base = seed % 2 == 0 ? 0 : 6400;
      const std::int64_t end = pack(blocks, base);
      check_apart(blocks, base, end);
      CHECK(end >= base + packing_bound(blocks));
    }
  }
  std::vector<PackedBlock> none;
  CHECK(pack(none, 128) == 128);
  CHECK(packing_bound(none) == 0);
}

TEST_CASE("packing: nested and equal lifetimes pack without a hole") {
  std::vector<PackedBlock> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back({.bytes = 64 * (1 + i % 7), .birth = i, .death = 300 - i});
  CHECK(pack(blocks) == packing_bound(blocks));
  check_apart(blocks, 0, packing_bound(blocks));
  std::vector<PackedBlock> one_after_the_other;
  for (int i = 0; i < 100; ++i) one_after_the_other.push_back({.bytes = 640, .birth = i, .death = i + 1});
  CHECK(pack(one_after_the_other) == 640);  // a block may begin where one has just ended
}

TEST_CASE("layout: a program that follows it ends exactly where it says, from the first step on") {
  const Layout layout = rehearse();
  CHECK(layout.lasting.size() == 3);
  CHECK(layout.sections.at("step").size() == 4);
  CHECK(layout.sections.at("evaluate").size() == 3);
  for (const bool is_plan : {true, false}) {
    const Device device = is_plan ? Device::plan() : Device::new_cpu();
    device.set_placement(follow(std::make_shared<const Layout>(layout)));
    Program program(device);
    for (int i = 0; i < 5; ++i) {
      program.step();
      CHECK(device.reserved_bytes() <= layout.end);
      program.evaluate();
    }
    CHECK(device.reserved_bytes() == layout.end);
    CHECK(device.reserved_bytes() == layout.bound);
    CHECK(device.peak_bytes() <= device.reserved_bytes());
  }
  const Device unpacked = Device::plan();
  Program program(unpacked);
  for (int i = 0; i < 5; ++i) program.step();
  CHECK(unpacked.reserved_bytes() > layout.end);
}

TEST_CASE("layout: a program that does something else, or finds the device in use, still gets its memory") {
  const auto layout = std::make_shared<const Layout>(rehearse());
  const Device device = Device::new_cpu();
  const std::shared_ptr<Storage> before = Storage::allocate(device, 3000);
  device.set_placement(follow(layout));
  Program program(device);
  for (int i = 0; i < 5; ++i) program.step(64 * i);
  begin_section(device, "unknown");
  const std::shared_ptr<Storage> other = Storage::allocate(device, 12345);
  CHECK(device.live_bytes() == 3000 + 12345 + 1000 + 500 + 2000);
  device.set_placement(nullptr);
  program.step();
  CHECK_THROWS_AS(LayoutRecorder(device), InvalidArgument);
}

TEST_CASE("arena: a block at a given offset is taken only from free bytes, and holes around it stay") {
  Arena arena(1 << 20);
  arena.set_limit(10000);
  CHECK(arena.allocate_at(640, 100));  // 0..640 becomes a hole
  CHECK(arena.reserved_bytes() == 768);
  CHECK_FALSE(arena.allocate_at(640, 1));
  CHECK_FALSE(arena.allocate_at(576, 128));
  CHECK_FALSE(arena.allocate_at(704, 64));
  CHECK_FALSE(arena.allocate_at(1, 1));
  CHECK_FALSE(arena.allocate_at(-64, 1));
  CHECK_FALSE(arena.allocate_at(9984, 64));
  CHECK_FALSE(arena.allocate_at(std::int64_t{1} << 40, 64));
  CHECK(arena.allocate_at(0, 0));
  CHECK(arena.live_bytes() == 128);
  CHECK(arena.allocate_at(128, 128));
  CHECK(arena.largest_hole() == 384);
  CHECK(arena.allocate(384) == 256);
  CHECK(arena.allocate(128) == 0);
  CHECK(arena.largest_hole() == 0);
  CHECK(arena.allocate_at(768, 64));   // at the top
  CHECK(arena.allocate_at(896, 64));   // above it
  arena.release(896, 64);
  CHECK(arena.allocate_at(896, 640));  // begins in the last hole, ends above the top
  CHECK(arena.reserved_bytes() == 1536);
  CHECK(arena.allocate(64) == 832);
}

TEST_CASE("arena: random blocks at given and at free offsets never overlap") {
  Arena arena(1 << 20);
  const RandomKey key{.seed = 9};
  std::vector<std::pair<std::int64_t, std::int64_t>> live;
  std::int64_t sum = 0, refused = 0, granted = 0;
  const auto meets = [&](std::int64_t offset, std::int64_t bytes) {
    return std::any_of(live.begin(), live.end(), [&](const auto& b) {
      return offset < b.first + Arena::rounded(b.second) && b.first < offset + Arena::rounded(bytes);
    });
  };
  for (std::uint64_t i = 0; i < 6000; ++i) {
    const std::uint32_t what = key.word(4 * i) % 10;
    if (what < 4 && !live.empty()) {
      const std::size_t index = key.word(4 * i + 1) % live.size();
      arena.release(live[index].first, live[index].second);
      sum -= Arena::rounded(live[index].second);
      live.erase(live.begin() + std::ptrdiff_t(index));
    } else {
      const std::int64_t bytes = 1 + key.word(4 * i + 1) % 2000;
      std::int64_t offset = key.word(4 * i + 2) % 2000 * 64;
      if (what < 8) {
        const bool is_taken = meets(offset, bytes);
        const bool is_granted = arena.allocate_at(offset, bytes);
        REQUIRE(is_granted == !is_taken);
        ++(is_granted ? granted : refused);
        if (!is_granted) continue;
      } else {
        offset = arena.allocate(bytes);
        REQUIRE_FALSE(meets(offset, bytes));
      }
      live.emplace_back(offset, bytes);
      sum += Arena::rounded(bytes);
    }
    REQUIRE(arena.live_bytes() == sum);
  }
  CHECK(refused > 100);
  CHECK(granted > 100);
  for (const auto& [offset, bytes] : live) arena.release(offset, bytes);
  CHECK(arena.allocate(arena.reserved_bytes()) == 0);
}
