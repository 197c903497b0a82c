#include <refrain/tests/cuda/emulator_kernels.h>
#include <refrain/tests/support/catch.h>

namespace refrain {

TEST_CASE("emulator: a barrier shows every thread what the others wrote before it") {
  for (int threads : {1, 32, 33, 256, 1024}) {
    const std::vector<float> out = reverse_through_shared(threads, true);
    for (int i = 0; i < threads; ++i) REQUIRE(out[std::size_t(i)] == float(threads - 1 - i));
  }
}

}  // namespace refrain
