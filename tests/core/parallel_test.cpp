// The thread pool and Philox.
#include <refrain/core/parallel.h>
#include <refrain/core/random.h>
#include <refrain/tests/support/catch.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

using namespace refrain;

TEST_CASE("parallel: every piece runs once, whatever the number of threads") {
  const int before = num_threads();
  for (int threads : {1, 2, 4}) {
    set_num_threads(threads);
    for (std::int64_t count : {0, 1, 7, 1000}) {
      std::vector<std::atomic<int>> ran(std::size_t(count) + 1);
      parallel_pieces(count, [&](std::int64_t piece) { ++ran[std::size_t(piece)]; });
      bool once = true;
      for (std::int64_t i = 0; i < count; ++i) once &= ran[std::size_t(i)] == 1;
      CHECK(once);
    }
  }
  set_num_threads(before);
  CHECK_THROWS(set_num_threads(0));
}

TEST_CASE("parallel: nested work runs inline, exceptions arrive, the pool survives them") {
  const int before = num_threads();
  set_num_threads(3);
  std::atomic<int> inner{0};
  parallel_pieces(8, [&](std::int64_t) { parallel_pieces(5, [&](std::int64_t) { ++inner; }); });
  CHECK(inner == 40);
  CHECK_THROWS_AS(parallel_pieces(100,
                                  [](std::int64_t piece) {
                                    if (piece == 57) throw std::runtime_error("piece 57");
                                  }),
                  std::runtime_error);
  std::atomic<int> after{0};
  parallel_for(1000, 10, [&](std::int64_t begin, std::int64_t end) { after += int(end - begin); });
  CHECK(after == 1000);
  set_num_threads(before);
}

TEST_CASE("parallel: thousands of small jobs in a row lose and repeat no piece") {
  const int before = num_threads();
  set_num_threads(4);
  bool exact = true;
  for (std::int64_t job = 0; job < 20000; ++job) {
    const std::int64_t count = 1 + job % 7;
    std::atomic<std::int64_t> sum{0};
    parallel_pieces(count, [&](std::int64_t piece) { sum += job * 100 + piece; });
    exact &= sum == count * job * 100 + count * (count - 1) / 2;
  }
  CHECK(exact);
  set_num_threads(before);
}

TEST_CASE("parallel: two threads may use the pool at once") {
  std::atomic<std::int64_t> sum{0};
  const auto work = [&] {
    for (int i = 0; i < 200; ++i) parallel_pieces(50, [&](std::int64_t piece) { sum += piece; });
  };
  std::thread other(work);
  work();
  other.join();
  CHECK(sum == 2 * 200 * 50 * 49 / 2);
}

TEST_CASE("parallel: subnormals are flushed inside and only there") {
  volatile float tiny = std::numeric_limits<float>::min();
  const auto halved = [&] { return float(tiny * 0.5f); };
  CHECK(halved() != 0.0f);
  float one = 1, many[4];
  parallel_pieces(1, [&](std::int64_t) { one = halved(); });
  parallel_pieces(4, [&](std::int64_t piece) { many[piece] = halved(); });
  CHECK(one == 0.0f);
  for (float value : many) CHECK(value == 0.0f);
  CHECK(halved() != 0.0f);
}

TEST_CASE("Philox: the published test vectors") {
  // From the authors' known-answer file: counter and key all zero, all ones, and digits of pi.
  CHECK(philox4x32({0, 0, 0, 0}, 0, 0) == std::array<std::uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u});
  CHECK(philox4x32({~0u, ~0u, ~0u, ~0u}, ~0u, ~0u) == std::array<std::uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu});
  CHECK(philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, 0xa4093822u, 0x299f31d0u) ==
        std::array<std::uint32_t, 4>{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u});
}

TEST_CASE("random: streams of different keys differ, uniforms are uniform, generators can be put back") {
  const RandomKey key{.seed = 1, .step = 2, .stage = 3, .call = 4};
  RandomKey other = key;
  other.call = 5;
  CHECK(key.word(0) != other.word(0));
  other = key;
  other.purpose = RandomPurpose::update;
  CHECK(key.word(0) != other.word(0));
  double sum = 0, squares = 0;
  for (std::uint64_t i = 0; i < 100000; ++i) {
    const double u = key.uniform(i);
    REQUIRE((u >= 0 && u < 1));
    sum += u;
    squares += u * u;
  }
  CHECK(std::abs(sum / 1e5 - 0.5) < 0.005);
  CHECK(std::abs(squares / 1e5 - 1.0 / 3) < 0.005);

  const Generator generator(9);
  const float first = generator.uniform();
  const std::uint64_t position = generator.position();
  const float second = generator.uniform();
  generator.set_position(position);
  CHECK(generator.uniform() == second);
  CHECK(first != second);
}
