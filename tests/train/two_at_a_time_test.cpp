#include <refrain/tests/support/catch.h>
#include <refrain/train/two_at_a_time.h>

#include <atomic>
#include <stdexcept>
#include <vector>

using namespace refrain;

TEST_CASE("two at a time: each piece is done once, and an exception comes out") {
  for (const std::size_t count : {0, 1, 2, 31}) {
    std::vector<std::atomic<int>> done(count);
    for_each_two_at_a_time(count, [&](std::size_t i) { ++done[i]; });
    for (const std::atomic<int>& times : done) CHECK(times == 1);
  }
  for (const std::size_t bad : {0, 1, 6}) {
    CHECK_THROWS_AS(for_each_two_at_a_time(7, [&](std::size_t i) { if (i == bad) throw std::runtime_error("no"); }), std::runtime_error);
  }
}
