// The launcher, with this test program's own hidden cases as ranks ("rank: …"): output, exit codes, deaths, orphans.
#include "rank_bodies.h"

#include <refrain/tests/support/catch.h>

#include <signal.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace refrain {

namespace {

using testing::launch_ranks;
using testing::Launched;
using testing::ScratchDirectory;

bool is_alive(pid_t pid) { return kill(pid, 0) == 0; }

bool ends_within(const std::vector<pid_t>& pids, double seconds) {
  for (const auto start = std::chrono::steady_clock::now();;) {
    if (std::none_of(pids.begin(), pids.end(), is_alive)) return true;
    if (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > seconds) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace

TEST_CASE("launch: ranks know their places, lines are labelled, and 0 comes back") {
  const ScratchDirectory scratch;
  const Launched run = launch_ranks(scratch, 3, "places");
  CHECK(run.code == 0);
  for (const std::string rank : {"0", "1", "2"}) {
    CHECK(run.out.find("[rank " + rank + "] place " + rank + " of 3, local " + rank + " of 3, threads ") != std::string::npos);
    CHECK(run.err.find("[rank " + rank + "] without a newline") != std::string::npos);
  }
}

TEST_CASE("launch: the first failing rank's code comes back and is named, a lost rank's survivors after it") {
  const ScratchDirectory scratch;
  const Launched three = launch_ranks(scratch, 3, "exit 1 3");
  CHECK(three.code == 3);
  CHECK(three.err.find("refrain launch: rank 1 (") != std::string::npos);
  CHECK(three.err.find("ended with exit code 3") != std::string::npos);

#ifdef REFRAIN_HAS_GLOO
  const Launched killed = launch_ranks(scratch, 2, "kill 1");
  CHECK(killed.code == 128 + SIGKILL);
  CHECK(killed.err.find("was ended by signal 9") != std::string::npos);
  CHECK(killed.err.find("[rank 0] lost rank 1 at step 3 in all_reduce(sum) of 1000 f32: rank 1 (") != std::string::npos);
  CHECK(killed.err.find("its process ended") != std::string::npos);
  CHECK(killed.seconds < 5);
#endif
}

TEST_CASE("launch: a rank that does not end by itself is ended, SIGTERM or not") {
  const ScratchDirectory scratch;
  LaunchOptions options;
  options.grace = options.term_grace = std::chrono::milliseconds(300);
  const Launched run = launch_ranks(scratch, 2, "stubborn", options);
  CHECK(run.code == 4);
  CHECK(run.seconds < 5);
  CHECK(run.err.find("rank 1 (") != std::string::npos);
  CHECK(run.err.find("is still there and is ended") != std::string::npos);
}

TEST_CASE("launch: signals are passed on once, and nobody outlives a launcher that is killed") {
  for (const int number : {SIGTERM, SIGINT, SIGKILL}) {
    const ScratchDirectory scratch;
    const pid_t launcher = testing::start_launcher(scratch, 3, "wait");
    const std::vector<pid_t> ranks = testing::wait_for_pids(scratch, 3);
    REQUIRE(ranks.size() == 3);
    kill(launcher, number);
    CHECK(testing::wait_for_launcher(scratch, launcher).code == (number == SIGKILL ? 128 + SIGKILL : 75));
    CHECK(ends_within(ranks, 3));
  }
}

}  // namespace refrain
