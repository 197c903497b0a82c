// The emulator's models of what device code may count on.
#include <refrain/kernels/emulator/options.h>
#include <refrain/tests/cuda/emulator_kernels.h>
#include <refrain/tests/support/catch.h>

#include <cmath>
#include <cstring>

namespace refrain::emulator_test {

TEST_CASE("emulator: a barrier shows every thread what the others wrote before it") {
  for (int threads : {1, 32, 33, 256, 1024}) {
    const std::vector<float> out = run_kernel("reverse", threads);
    for (int i = 0; i < threads; ++i) REQUIRE(out[std::size_t(i)] == float(threads - 1 - i));
  }
}

TEST_CASE("emulator: shuffles read the lanes that the programming guide says") {
  const std::vector<float> out = run_kernel("shuffles", 64);
  for (int i = 0; i < 64; ++i) {
    const int lane = i % 32, warp = i - lane;
    REQUIRE(out[std::size_t(i)] == float(warp + (lane ^ 5)));
    REQUIRE(out[std::size_t(1024 + i)] == float(lane % 16 >= 3 ? i - 3 : i));
    REQUIRE(out[std::size_t(2048 + i)] == float(lane % 8 < 6 ? i + 2 : i));
    REQUIRE(out[std::size_t(3072 + i)] == float(warp + 1));
  }
}

TEST_CASE("emulator: votes and reductions of a warp see all its lanes") {
  const std::vector<float> out = run_kernel("votes", 64);
  for (int i = 0; i < 64; ++i) {
    REQUIRE(out[std::size_t(i)] == 1);
    REQUIRE(out[std::size_t(1024 + i)] == float(i < 32));
    REQUIRE(out[std::size_t(2048 + i)] == 1);
    REQUIRE(out[std::size_t(3072 + i)] == float(i < 32 ? 496 : 496 + 1024));
  }
}

TEST_CASE("emulator: a block's reduction gives every thread of every block the sum") {
  const std::vector<float> out = run_kernel("block_sum", 256, 5);
  for (int i = 0; i < 5 * 256; ++i) REQUIRE(out[std::size_t(i)] == 255 * 128);
}

TEST_CASE("emulator: threads that have ended are not waited for at a barrier") {
  const std::vector<float> out = run_kernel("early_exit", 64);
  for (int i = 0; i < 64; ++i) REQUIRE(out[std::size_t(i)] == float(i < 40));
}

TEST_CASE("emulator: atomic additions of all blocks arrive") {
  float count = 0;
  const int expected = 8 * 64;
  count = run_kernel("count", 64, 8)[0];
  std::int32_t bits;
  std::memcpy(&bits, &count, sizeof bits);
  CHECK(bits == expected);
}

TEST_CASE("emulator: mma multiplies fragments laid out as the PTX ISA says") {
  std::vector<float> a(256), b(128);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = float(int(i * 7 % 23) - 11);
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = float(int(i * 5 % 19) - 9);
  for (bool is_bf16 : {false, true}) {
    const std::vector<float> d = multiply(a, b, is_bf16);
    for (std::size_t row = 0; row < 16; ++row)
      for (std::size_t column = 0; column < 8; ++column) {
        float expected = 0;
        for (std::size_t k = 0; k < 16; ++k) expected += a[row * 16 + k] * b[k * 8 + column];
        REQUIRE(d[row * 8 + column] == expected);
      }
  }
}

TEST_CASE("emulator: ldmatrix gives lane l two elements of row l / 4, of each matrix or its transpose") {
  for (int count : {2, 4})
    for (bool is_transposed : {false, true}) {
      const std::vector<float> out = load_matrices(count, is_transposed);
      for (int lane = 0; lane < 32; ++lane)
        for (int m = 0; m < count; ++m)
          for (int i = 0; i < 2; ++i) {
            const int row = lane / 4, column = lane % 4 * 2 + i;
            const int expected = m * 64 + (is_transposed ? column * 8 + row : row * 8 + column);
            REQUIRE(out[std::size_t((lane * count + m) * 2 + i)] == float(expected));
          }
    }
}

TEST_CASE("emulator: an asynchronous copy is NaN until the wait for its group") {
  const std::vector<float> out = run_kernel("copies", 32);
  for (int i = 0; i < 16; ++i) {
    REQUIRE(std::isnan(out[std::size_t(i)]));
    if (i < 8) REQUIRE(out[std::size_t(16 + i)] == float(i + 1));
    else REQUIRE(std::isnan(out[std::size_t(16 + i)]));
    REQUIRE(out[std::size_t(32 + i)] == (i < 12 ? float(i + 1) : 0.0f));
  }
}

TEST_CASE("emulator: in deferred mode work runs when it is waited for, and other streams' work when events say so") {
  emulator::options().is_deferred = true;
  const std::vector<float> deferred = before_and_after_waiting();
  const float ordered = across_streams(true), unordered = across_streams(false);
  emulator::options().is_deferred = false;
  CHECK(deferred == std::vector<float>{0, 1});
  CHECK(ordered == 1);
  CHECK(unordered == 0);
  CHECK(before_and_after_waiting() == std::vector<float>{1, 1});
  CHECK(across_streams(false) == 1);
}

}  // namespace refrain::emulator_test
