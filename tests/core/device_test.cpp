// Devices as handles: which there are, what they say of themselves, and how one that is missing is refused.
#include <refrain/core/device.h>
#include <refrain/tests/support/catch.h>

#include <sstream>

using namespace refrain;

namespace {

std::string text_of(const Device& device) {
  std::ostringstream text;
  text << device;
  return text.str();
}

}  // namespace

TEST_CASE("device: a CUDA device that is not there is refused with the reason, and nothing else is touched") {
  const std::string problem = Device::cuda_problem();
  if (problem.empty()) return;
  CHECK_THROWS_AS(Device::cuda(), DeviceUnavailable);
  CHECK_THROWS_WITH(Device::cuda(), "no CUDA device 0: " + problem);
  CHECK_THROWS_WITH(Device::new_cuda(1), "no CUDA device 1: " + problem);
  CHECK(Device::cuda_problem() == problem);
}

TEST_CASE("device: a plan has the target it plans, and no bytes, in every build") {
  const Device cuda = Device::plan(DeviceKind::cuda);
  CHECK(cuda.kind() == DeviceKind::plan);
  CHECK(cuda.target() == DeviceKind::cuda);
  CHECK(!cuda.has_bytes());
  CHECK(text_of(cuda) == "plan(cuda)");
  CHECK(Device::plan().target() == DeviceKind::cpu);
  CHECK(text_of(Device::plan()) == "plan(cpu)");
  CHECK(text_of(Device::cpu()) == "cpu");
  CHECK_NOTHROW(cuda.synchronize());
  CHECK_THROWS_AS(Device::plan(DeviceKind::plan), InvalidArgument);
}
