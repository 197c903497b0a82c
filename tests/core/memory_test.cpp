// The arena and the ledger.
#include <refrain/core/tensor.h>
#include <refrain/core/random.h>
#include <refrain/tests/support/catch.h>

#include <map>
#include <thread>

using namespace refrain;

TEST_CASE("arena: blocks are aligned, disjoint, and holes are merged and used again") {
  Arena arena(1 << 20);
  const std::int64_t a = arena.allocate(100), b = arena.allocate(1), c = arena.allocate(64);
  CHECK(a == 0);
  CHECK(b == 128);
  CHECK(c == 192);
  CHECK(arena.live_bytes() == 256);
  arena.release(a, 100);
  arena.release(b, 1);
  CHECK(arena.allocate(192) == 0);  // both holes, merged
  CHECK(arena.reserved_bytes() == 256);
  arena.release(c, 64);
  CHECK(arena.allocate(128) == 192);  // the last hole grows instead of being skipped
  CHECK(arena.reserved_bytes() == 320);
}

TEST_CASE("arena: the smallest hole that fits is taken, the lowest among equals") {
  Arena arena(1 << 20);
  const std::int64_t large = arena.allocate(256), wall1 = arena.allocate(64), small = arena.allocate(128), wall2 = arena.allocate(64),
                     small2 = arena.allocate(128), wall3 = arena.allocate(64);
  arena.release(large, 256);
  arena.release(small2, 128);
  arena.release(small, 128);
  CHECK(arena.allocate(128) == small);
  CHECK(arena.allocate(70) == small2);
  CHECK(arena.allocate(70) == large);
  CHECK(wall1 + wall2 + wall3 > 0);
}

TEST_CASE("arena: trimming shortens the range to its last block") {
  Arena arena(1 << 20);
  const std::int64_t a = arena.allocate(64), b = arena.allocate(128), c = arena.allocate(64);
  arena.trim();
  CHECK(arena.reserved_bytes() == 256);
  arena.release(c, 64);
  arena.release(a, 64);
  arena.trim();
  CHECK(arena.reserved_bytes() == 192);
  CHECK(arena.allocate(64) == a);
  arena.release(a, 64);
  arena.release(b, 128);
  arena.trim();
  CHECK(arena.reserved_bytes() == 0);
  CHECK(arena.allocate(64) == 0);
}

TEST_CASE("arena: random use never overlaps and ends empty") {
  Arena arena(1 << 24);
  std::map<std::int64_t, std::int64_t> live;  // offset -> bytes
  const RandomKey key{.seed = 5};
  bool is_disjoint = true;
  for (std::uint64_t i = 0; i < 20000; ++i) {
    if (live.empty() || key.word(2 * i) % 5 < 3) {
      const std::int64_t bytes = 1 + key.word(2 * i + 1) % 5000;
      const std::int64_t offset = arena.allocate(bytes);
      if (offset < 0) continue;
      auto next = live.lower_bound(offset);
      is_disjoint &= next == live.end() || offset + bytes <= next->first;
      is_disjoint &= next == live.begin() || std::prev(next)->first + std::prev(next)->second <= offset;
      live.emplace(offset, bytes);
    } else {
      auto victim = std::next(live.begin(), std::ptrdiff_t(key.word(2 * i + 1) % live.size()));
      arena.release(victim->first, victim->second);
      live.erase(victim);
    }
  }
  CHECK(is_disjoint);
  for (auto [offset, bytes] : live) arena.release(offset, bytes);
  CHECK(arena.live_bytes() == 0);
  const std::int64_t reserved = arena.reserved_bytes();
  CHECK(arena.allocate(reserved) == 0);  // one hole again
}

TEST_CASE("arena: no growth past the limit, and the refusal changes nothing") {
  Arena arena(1 << 20);
  arena.set_limit(1000);
  CHECK(arena.allocate(640) == 0);
  CHECK(arena.allocate(640) == -1);
  CHECK(arena.live_bytes() == 640);
  CHECK(arena.allocate(320) == 640);
}

TEST_CASE("ledger: totals, peaks and the peak's composition add up") {
  const Device device = Device::new_cpu();
  Tensor parameter, temporary;
  {
    ModuleScope module("blocks");
    KindScope kind(MemoryKind::parameter);
    parameter = empty({100}, DType::f32, device);
  }
  {
    ModuleScope module("head");
    temporary = empty({50}, DType::f64, device);
  }
  CHECK(device.live_bytes() == 800);
  CHECK(device.live_bytes(MemoryKind::parameter) == 400);
  temporary = Tensor();
  Tensor small = empty({10}, DType::u8, device);
  const Ledger ledger = device.ledger();
  CHECK(ledger.live_bytes() == 410);
  CHECK(ledger.peak_bytes() == 800);
  CHECK(ledger.kinds_at_peak()[std::size_t(MemoryKind::parameter)] == 400);
  CHECK(ledger.kinds_at_peak()[std::size_t(MemoryKind::temporary)] == 400);
  std::int64_t sum = 0;
  std::map<std::string, std::int64_t> by_module;
  for (const PeakEntry& entry : ledger.entries_at_peak()) {
    sum += entry.bytes;
    by_module[entry.module->text] += entry.bytes;
  }
  CHECK(sum == 800);
  CHECK(by_module == std::map<std::string, std::int64_t>{{"blocks", 400}, {"head", 400}});
  device.reset_peak();
  CHECK(device.peak_bytes() == 410);
}

TEST_CASE("ledger: a saved temporary counts as a saved activation until it is let go") {
  const Device device = Device::new_cpu();
  Tensor t = empty({16}, DType::f32, device);
  t.storage()->add_saved();
  t.storage()->add_saved();
  CHECK(device.live_bytes(MemoryKind::saved) == 64);
  t.storage()->remove_saved();
  CHECK(device.live_bytes(MemoryKind::saved) == 64);
  t.storage()->remove_saved();
  CHECK(device.live_bytes(MemoryKind::temporary) == 64);
}

TEST_CASE("device: out of memory names request, holder and limit, and leaves the device usable") {
  const Device device = Device::new_cpu();
  device.set_memory_limit(1 << 20);
  Tensor held = empty({1 << 18}, DType::u8, device);
  ModuleScope module("blocks");
  try {
    empty({1 << 20}, DType::u8, device);
    FAIL("expected OutOfMemory");
  } catch (const OutOfMemory& error) {
    const std::string text = error.what();
    CHECK(text.find("1048576") != std::string::npos);
    CHECK(text.find("262144") != std::string::npos);
    CHECK(text.find("'blocks'") != std::string::npos);
  }
  CHECK(empty({1 << 19}, DType::u8, device).has_bytes());
  CHECK(device.live_bytes() == 1 << 18);
}

TEST_CASE("device: the plan device hands out the CPU's offsets without bytes") {
  const Device cpu = Device::new_cpu(), plan = Device::plan();
  std::vector<Tensor> on_cpu, on_plan;
  for (std::int64_t size : {100, 3, 70, 0, 1000}) {
    on_cpu.push_back(empty({size}, DType::f32, cpu));
    on_plan.push_back(empty({size}, DType::f32, plan));
  }
  on_cpu[1] = on_plan[1] = Tensor();
  on_cpu.push_back(empty({2}, DType::f32, cpu));
  on_plan.push_back(empty({2}, DType::f32, plan));
  for (std::size_t i = 0; i < on_cpu.size(); ++i) {
    if (on_cpu[i].defined()) CHECK(on_cpu[i].storage()->offset() == on_plan[i].storage()->offset());
  }
  CHECK(plan.peak_bytes() == cpu.peak_bytes());
  CHECK(plan.reserved_bytes() == cpu.reserved_bytes());
  CHECK_FALSE(on_plan[0].has_bytes());
  CHECK_THROWS_AS(on_plan[0].data<float>(), InvalidArgument);
}

TEST_CASE("context: scopes belong to the thread and put the old value back") {
  {
    ModuleScope outer("blocks");
    ModuleScope inner("3");
    PhaseScope phase(Phase::backward);
    CHECK(thread_context().module->text == "blocks.3");
    std::string other = "unset";
    std::thread([&] { other = thread_context().module->text; }).join();
    CHECK(other.empty());
    CHECK(MemoryTag::current().phase == Phase::backward);
  }
  CHECK(thread_context().module == ModulePath::root());
  CHECK(thread_context().phase == Phase::forward);
  CHECK(ModulePath::child(ModulePath::root(), "blocks.3") == ModulePath::child(ModulePath::child(ModulePath::root(), "blocks"), "3"));
}
