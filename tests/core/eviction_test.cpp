#include <refrain/core/copier.h>
#include <refrain/kernels/kernel.h>
#include <refrain/kernels/convert/convert.h>
#include <refrain/tests/support/catch.h>

using namespace refrain;

TEST_CASE("storage: evicted bytes go back to the arena and come again, and tensors know the same storage throughout") {
  const Device device = Device::new_cpu();
  const Tensor t = full({100}, 3, DType::f32, device);
  const Tensor same = t.without_autograd();
  const std::uint64_t birth = t.storage()->birth();
  CHECK(device.live_bytes() == 400);
  t.storage()->evict();
  CHECK(device.live_bytes() == 0);
  CHECK_FALSE(t.storage()->is_present());
  CHECK_FALSE(same.has_bytes());
  const Tensor other = full({10}, 1, DType::f32, device);  // where it was
  t.storage()->restore(MemoryKind::staging);
  CHECK(device.live_bytes(MemoryKind::staging) == 400);
  CHECK(device.live_bytes() == 440);
  CHECK(same.address() == t.address());
  CHECK(t.storage()->birth() == birth);
  CHECK(t.storage()->block() > other.storage()->block());
  fill_values(t, 5);
  CHECK(same.to_vector<float>() == std::vector<float>(100, 5));
  CHECK(other.to_vector<float>() == std::vector<float>(10, 1));
}

TEST_CASE("storage: what is away is refused by kernels, copies and readers, on a plan device too") {
  for (const Device& device : {Device::new_cpu(), Device::plan()}) {
    const Tensor t = empty({4}, DType::f32, device), out = empty({4}, DType::bf16, device), same = empty({4}, DType::f32, device);
    t.storage()->evict();
    CHECK_THROWS_WITH(launch(Convert{.x = t, .out = out}), Catch::Contains("is away"));
    CHECK_THROWS_WITH(copy_values(t, same), Catch::Contains("away"));
    if (device.has_bytes()) CHECK_THROWS_WITH(t.to_vector<float>(), Catch::Contains("they are away"));
  }
}

TEST_CASE("storage: one that dies while its bytes are away takes nothing with it") {
  const Device device = Device::new_cpu();
  Tensor t = empty({100}, DType::f32, device);
  t.storage()->evict();
  t = {};
  CHECK(device.live_bytes() == 0);
  CHECK(device.live_count() == 0);
}

TEST_CASE("storage: a timeline has every stay of the same storage, and owners to the byte") {
  const Device device = Device::new_cpu();
  const Tensor t = empty({100}, DType::f32, device);
  device.start_timeline();
  t.storage()->evict();
  t.storage()->restore(MemoryKind::staging);
  t.storage()->evict();
  const Timeline timeline = device.timeline();
  CHECK(timeline.blocks().size() == 2);
  for (const MemoryBlock& block : timeline.blocks()) CHECK(block.death >= 0);
}

TEST_CASE("storage: restoring beyond the limit throws and leaves the bytes away") {
  const Device device = Device::new_cpu();
  const Tensor t = empty({100}, DType::f32, device);
  t.storage()->evict();
  const Tensor other = empty({1000}, DType::f32, device);
  device.set_memory_limit(4200);
  CHECK_THROWS_AS(t.storage()->restore(MemoryKind::staging), OutOfMemory);
  CHECK_FALSE(t.storage()->is_present());
  CHECK(device.live_bytes() == 4000);
}

TEST_CASE("device: the host arena of a device is one, with a ledger of its own, and is planned where the device is") {
  const Device device = Device::new_cpu(), plan = Device::plan(DeviceKind::cuda);
  CHECK_FALSE(device.has_host());
  CHECK(device.host() == device.host());
  CHECK(device.has_host());
  CHECK_FALSE(device.host() == device);
  const Tensor t = zeros({8}, DType::f32, device.host());
  CHECK(device.live_bytes() == 0);
  CHECK(device.host().live_bytes() == 32);
  CHECK_FALSE(plan.host().has_bytes());
  CHECK(plan.host().target() == DeviceKind::cpu);
}

TEST_CASE("copier: copies arrive in order, without a new version of what they fill") {
  const Device device = Device::new_cpu();
  Copier copier;
  std::vector<Tensor> from, to;
  std::vector<Copier::Ticket> tickets;
  for (int i = 0; i < 50; ++i) {
    from.push_back(full({std::int64_t(1000 * i)}, i, DType::f32, device.host()));
    to.push_back(zeros({1000, i}, DType::f32, device));
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::uint64_t version = to[i].storage()->version();
    tickets.push_back(copier.begin(to[i], from[i]));
    CHECK(to[i].storage()->version() == version);
  }
  for (std::size_t i = 0; i < to.size(); ++i) {
    copier.wait(tickets[i]);
    CHECK(to[i].to_vector<float>() == std::vector<float>(1000 * i, float(i)));
  }
  CHECK_THROWS_AS(copier.begin(to[1], from[2]), InvalidArgument);
}
