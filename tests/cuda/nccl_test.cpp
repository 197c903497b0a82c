// NCCL through the engine's own link, with one rank that sends to itself: the emulator's fake, or the real library on a GPU.
#include <refrain/dist/nccl/link.h>
#include <refrain/tests/cuda/parity.h>

#include <chrono>
#include <cstring>
#include <thread>

using namespace refrain;
using detail::NcclLink;

namespace {

void wait_for(const NcclLink::Mark& mark) {
  while (!mark.is_reached()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

// From now on, not from the start of the program.
NcclLink::Patience two_minutes() {
  return [start = std::chrono::steady_clock::now()] {
    if (std::chrono::steady_clock::now() - start > std::chrono::minutes(2)) throw detail::NcclError("the test takes too long");
  };
}

}  // namespace

TEST_CASE("cuda nccl: a link of one rank sends to itself, broadcasts, adds, copies, splits and is aborted") {
  if (const std::string problem = detail::nccl_problem(); !problem.empty()) {
    WARN("NCCL cannot be used: " << problem);
    return;
  }
  const Device device = cuda_device();
  const NcclLink::Patience patience = two_minutes();
  const auto link = detail::open_nccl_link(device, detail::new_nccl_id(), 0, 1, 4096, patience);
  link->attach();
  const Tensor values = random_tensor({1000}, DType::f32, 1), x = on_cuda(values), y = poisoned({1000}, DType::f32, device);
  // The stream begins when the device has done what it was given.
  link->wait_for(*link->device_mark());
  const detail::NcclMessage messages[] = {{0, true, x.address(), x.bytes()}, {0, false, y.address(), y.bytes()}};
  link->exchange(messages, patience);
  wait_for(*link->mark());
  CHECK(same_bits(on_cpu(y), values));

  link->broadcast(y.address(), y.bytes(), 0, patience);
  const Tensor others(y.storage(), device, DType::f32, {1, 1000}, {1000, 1}, 0);
  link->reduce({.own = x, .others = others, .rank = 0, .op = ReduceOp::sum, .out = x});
  link->copy(y.address(), x.address(), x.bytes());
  wait_for(*link->mark());
  const std::vector<float> doubled = y.to_vector<float>(), before = values.to_vector<float>();
  for (std::size_t i = 0; i < doubled.size(); ++i) REQUIRE(doubled[i] == 2 * before[i]);

  // Headers travel from host memory to host memory.
  std::memcpy(link->headers().host, "a header", 8);
  const detail::NcclMessage headers[] = {{0, true, link->headers().device, 8}, {0, false, link->headers().device + 2048, 8}};
  link->exchange(headers, patience);
  wait_for(*link->mark());
  CHECK(std::string(reinterpret_cast<const char*>(link->headers().host) + 2048, 8) == "a header");

  const auto part = link->split(0, 0, patience);
  part->broadcast(x.address(), x.bytes(), 0, patience);
  wait_for(*part->mark());
  part->check();
  link->check();
  part->abort();
  link->abort();
  link->abort();  // a second time changes nothing
}
