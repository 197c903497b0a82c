#include <refrain/core/cpu/process_memory.h>
#include <refrain/core/tensor.h>
#include <refrain/tests/support/catch.h>

using namespace refrain;

TEST_CASE("process memory: touched pages are resident, and the peak remembers them") {
  constexpr std::int64_t kBytes = 64 << 20;
  const ProcessMemory before = process_memory();
  REQUIRE(before.resident > 0);
  {
    const Device device = Device::new_cpu();
    const Tensor t = full({kBytes}, 1, DType::u8, device);
    CHECK(process_memory().resident - before.resident > kBytes * 9 / 10);
  }
  const ProcessMemory after = process_memory();
  CHECK(after.peak >= before.resident + kBytes * 9 / 10);
  CHECK(after.resident < before.resident + kBytes / 2);  // the device's range went with it
}
