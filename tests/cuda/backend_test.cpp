// The backend beneath the kernels: bytes in and out, a growing address range, uploads beside the kernels, faults, reasons.
#include <refrain/core/cuda/backend.h>
#include <refrain/core/view.h>
#include <refrain/kernels/kernel.h>
#include <refrain/tests/cuda/parity.h>

#include <cstring>
#include <future>
#include <limits>
#include <sstream>
#include <thread>

using namespace refrain;

namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::vector<std::uint8_t> bytes_like_none(std::int64_t count) {
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
  std::uint32_t state = 12345;
  for (std::uint8_t& byte : bytes) byte = std::uint8_t((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

// A kernel of an embedder's own, written for the CPU alone.
struct OnlyOnCpu {
  static constexpr std::string_view name = "only_on_cpu";
  Out out;
};
void validate(const OnlyOnCpu&) {}
Cost cost(const OnlyOnCpu&) { return {}; }
void run(Cpu, const OnlyOnCpu& k) { *k.out.data<float>() = 1; }

}  // namespace

TEST_CASE("cuda device: a kernel without CUDA code is refused by name") {
  const Tensor here = zeros({1}, DType::f32), there = zeros({1}, DType::f32, Device::cuda());
  launch(OnlyOnCpu{.out = here});
  CHECK(here.item() == 1);
  CHECK_THROWS_WITH(launch(OnlyOnCpu{.out = there}), "only_on_cpu: there is no CUDA kernel for it");
  CHECK(there.item() == 0);
}

TEST_CASE("cuda device: a number that no device has is refused with the reason") {
  CHECK(Device::cuda_problem().empty());
  CHECK_THROWS_AS(Device::cuda(97), DeviceUnavailable);
  CHECK_THROWS_WITH(Device::cuda(97), Catch::StartsWith("no CUDA device 97: there "));
  CHECK_THROWS_AS(Device::cuda(-1), DeviceUnavailable);
  std::ostringstream text;
  text << Device::cuda();
  CHECK(text.str() == "cuda:0");
  CHECK(Device::cuda() == Device::cuda(0));
  CHECK(!(Device::new_cuda() == Device::cuda()));
  CHECK(Device::cuda().target() == DeviceKind::cuda);
  CHECK(cuda_memory(0).total >= cuda_memory(0).free);
  CHECK(cuda_memory(0).free > 0);
  CHECK_THAT(cuda_name(0), Catch::Contains("compute capability"));
}

TEST_CASE("cuda device: bytes of any number and start come back as they went in") {
  const Device device = Device::new_cuda();
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{1000}, 2 * kMiB - 1, 2 * kMiB, 2 * kMiB + 1, 9 * kMiB + 3}) {
    const std::vector<std::uint8_t> values = bytes_like_none(count);
    const Tensor t = from_values(values, {count}, device);
    CHECK(t.to_vector<std::uint8_t>() == values);
    if (count < 1000) continue;
    const Tensor part = view::slice(t, 0, 3, count - 5);
    CHECK(part.to_vector<std::uint8_t>() == std::vector<std::uint8_t>(values.begin() + 3, values.end() - 5));
  }
  CHECK(full({}, 7, DType::i64, device).item() == 7);
  CHECK(full({3}, -1.5, DType::bf16, device).to_vector<float>() == std::vector<float>(3, -1.5f));
  CHECK(zeros({5}, DType::f64, device).to_vector<double>() == std::vector<double>(5, 0.0));
  CHECK(device.live_bytes() == 0);
}

TEST_CASE("cuda device: strided values are copied to, from and between devices") {
  const Device device = Device::new_cuda(), other = Device::new_cuda();
  const Tensor host = random_tensor({6, 5, 7}, DType::f32, 1);
  const Tensor turned = view::permute(host, {2, 0, 1}), there = view::permute(to_device(host, device), {2, 0, 1});
  CHECK(there.to_vector<float>() == turned.to_vector<float>());
  CHECK(same_bits(to_device(there, Device::cpu()), contiguous_values(turned)));
  CHECK(same_bits(to_device(to_device(there, other), Device::cpu()), contiguous_values(turned)));
  const Tensor target = zeros({6, 5, 7}, DType::f32, device);
  copy_values(view::permute(target, {2, 0, 1}), turned);
  CHECK(target.to_vector<float>() == host.to_vector<float>());
  copy_values(view::slice(target, 1, 1, 3), view::slice(to_device(host, other), 1, 2, 4));
  CHECK(view::slice(target, 1, 1, 3).to_vector<float>() == view::slice(host, 1, 2, 4).to_vector<float>());
  fill_values(view::slice(target, 2, 0, 6), 4);
  CHECK(view::select(target, 2, 5).to_vector<float>() == std::vector<float>(30, 4.f));
  CHECK(view::select(target, 2, 6).to_vector<float>()[0] == view::select(host, 2, 6).to_vector<float>()[0]);
}

TEST_CASE("cuda device: the host is refused an address and told what to call") {
  const Tensor t = zeros({2}, DType::f32, Device::cuda());
  CHECK_THROWS_WITH(t.data<float>(), Catch::Contains("to_vector() and to_device() copy its values"));
  CHECK_THROWS_AS(t.raw_data(), InvalidArgument);
}

TEST_CASE("cuda device: memory grows without moving a tensor, ends at the limit, and is usable after that") {
  const Device device = Device::new_cuda();
  const Tensor first = full({1000}, 3, DType::f32, device);
  std::vector<Tensor> more;
  for (int i = 0; i < 20; ++i) more.push_back(full({700 * 1024}, i, DType::f32, device));
  CHECK(first.to_vector<float>() == std::vector<float>(1000, 3.f));
  for (int i = 0; i < 20; ++i) CHECK(view::slice(more[std::size_t(i)], 0, 700 * 1024 - 1, 700 * 1024).item() == i);
  const std::int64_t reserved = device.reserved_bytes();
  device.set_memory_limit(reserved + 100, "of the test");
  CHECK_THROWS_WITH(empty({1 << 20}, DType::f32, device), Catch::Contains("out of memory on cuda:0") && Catch::Contains("(of the test)"));
  more.pop_back();
  CHECK(full({1000}, 5, DType::f32, device).to_vector<float>() == std::vector<float>(1000, 5.f));
  CHECK(device.reserved_bytes() <= reserved);
}

TEST_CASE("cuda device: more than the device has is an OutOfMemory that changes nothing") {
  const Device device = Device::new_cuda();
  const Tensor kept = full({100}, 2, DType::f32, device);
  device.set_memory_limit(std::numeric_limits<std::int64_t>::max());
  const std::int64_t live = device.live_bytes();
  CHECK_THROWS_AS(empty({cuda_memory(0).total + kMiB}, DType::u8, device), OutOfMemory);
  CHECK(device.live_bytes() == live);
  CHECK(kept.to_vector<float>() == std::vector<float>(100, 2.f));
  CHECK(full({100}, 4, DType::f32, device).to_vector<float>()[99] == 4);
}

TEST_CASE("cuda device: memory is given back with the device") {
  const std::int64_t before = cuda_memory(0).free, pinned = cuda_pinned_bytes();
  {
    const Device device = Device::new_cuda();
    const Tensor t = zeros({8 * kMiB}, DType::u8, device);
    CHECK(cuda_memory(0).free <= before - 8 * kMiB);
    CHECK(t.to_vector<std::uint8_t>()[0] == 0);
    CHECK(cuda_pinned_bytes() > pinned);
  }
  CHECK(cuda_memory(0).free == before);
  CHECK(cuda_pinned_bytes() == pinned);
}

TEST_CASE("cuda device: a bad value that a kernel met is told once, when the host waits") {
  const Device device = Device::new_cuda();
  // As a kernel leaves it; host and device see it at one address.
  const auto leave = [&](CudaFault::Kind kind) {
    CudaFault& fault = *device.state().range->cuda().fault;
    fault.position = 3;
    fault.value = 7;
    fault.limit = 5;
    fault.is_claimed = 1;
    fault.kind = kind;
  };
  leave(CudaFault::embedding_index);
  CHECK_THROWS_WITH(device.synchronize(), "embedding: index 7 at position 3 must be below 5");
  CHECK_NOTHROW(device.synchronize());
  CHECK(device.state().range->cuda().fault->is_claimed == 0);
  const Tensor t = zeros({4}, DType::f32, device);
  leave(CudaFault::cross_entropy_target);
  CHECK_THROWS_WITH(t.to_vector<float>(), "cross_entropy: target 7 at position 3 must be below 5");
  CHECK(t.to_vector<float>() == std::vector<float>(4, 0.f));
}

TEST_CASE("cuda device: uploads wait for the work that reads what was there, and later work for them") {
  const Device device = Device::new_cuda();
  constexpr std::int64_t kNumel = 100000;
  const Tensor slot = zeros({kNumel}, DType::i32, device);
  std::vector<Tensor> seen;
  const auto upload = detail::new_upload(device, slot.bytes());
  for (std::int32_t i = 1; i <= 6; ++i) {
    upload->release();
    std::async(std::launch::async, [&] {  // as a loader's thread
      const std::vector<std::int32_t> values(kNumel, i);
      std::memcpy(upload->host(), values.data(), std::size_t(slot.bytes()));
      upload->start(slot.address(), slot.bytes());
    }).get();
    upload->finish();
    seen.push_back(clone(slot));
  }
  for (std::int32_t i = 1; i <= 6; ++i) CHECK(seen[std::size_t(i - 1)].to_vector<std::int32_t>() == std::vector<std::int32_t>(kNumel, i));
}

TEST_CASE("cuda device: threads may use devices of their own at once") {
  const auto work = [](int seed) {
    const Device device = Device::new_cuda();
    bool is_right = true;
    for (int i = 0; i < 20; ++i) {
      const Tensor t = random_tensor({37, 11}, DType::f32, std::uint64_t(100 * seed + i));
      is_right = is_right && view::permute(to_device(t, device), {1, 0}).to_vector<float>() == view::permute(t, {1, 0}).to_vector<float>();
    }
    return is_right;
  };
  std::vector<std::future<bool>> results;
  for (int seed = 0; seed < 3; ++seed) results.push_back(std::async(std::launch::async, work, seed));
  for (std::future<bool>& result : results) CHECK(result.get());
}
