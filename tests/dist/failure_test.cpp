// How groups end: killed, stopped, stuck and leaving ranks, calls that differ. Survivors name rank, host, step and operation.
#ifdef REFRAIN_HAS_GLOO

#include "gloo_ranks.h"
#include "rank_bodies.h"

#include <refrain/dist/net/socket.h>
#include <refrain/tests/support/catch.h>

#include <signal.h>

namespace refrain {

namespace {

using std::chrono::milliseconds;
using testing::gloo_ranks;
using testing::launch_ranks;
using testing::Launched;
using testing::ScratchDirectory;

// Sets a variable for the ranks that are started meanwhile.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

LaunchOptions impatient() {
  LaunchOptions options;
  options.grace = milliseconds(1500);
  options.term_grace = milliseconds(300);
  return options;
}

}  // namespace

TEST_CASE("a killed rank, rank 0 or another: all survivors name it at once") {
  for (const int odd_one : {0, 3}) {
    const ScratchDirectory scratch;
    const Launched run = launch_ranks(scratch, 4, concat("kill ", odd_one));
    CHECK(run.code == 128 + SIGKILL);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == odd_one) continue;
      INFO(run.err);
      CHECK(has(run.err, concat("[rank ", rank, "] lost rank ", odd_one, " at step 3 in all_reduce(sum) of 1000 f32: rank ",
                                odd_one, " (", detail::host_name(), ") is lost: its process ended")));
    }
    CHECK(run.seconds < 3.5);
  }
}

TEST_CASE("a killed rank of a mesh: those on its axes and those on none of them name it by the world's number") {
  const ScratchDirectory scratch;
  const Launched run = launch_ranks(scratch, 4, "mesh 3");
  INFO(run.err);
  CHECK(run.code == 128 + SIGKILL);
  for (const std::string text : {"[rank 2] lost rank 3 at step 3 in all_reduce(sum) of 1000 f32 among ranks 2, 3: rank 3 (",
                                 "[rank 1] lost rank 3 at step 3 in all_reduce(mean) of 2000 f32 among ranks 1, 3: rank 3 (",
                                 "[rank 0] lost rank 3 at step "})
    CHECK(has(run.err, text));
  CHECK(run.seconds < 3.5);
}

TEST_CASE("a stopped rank, rank 0 or another: its heartbeat is missed, and the launcher ends it") {
  const Variable timeout("REFRAIN_HEARTBEAT_TIMEOUT", "1");
  for (const int odd_one : {0, 1}) {
    const ScratchDirectory scratch;
    const Launched run = launch_ranks(scratch, 3, concat("stop ", odd_one), impatient());
    INFO(run.err);
    CHECK(run.code == 6);
    CHECK(has(run.err, concat("[rank 2] lost rank ", odd_one, " at step 3 in all_reduce(sum) of 1000 f32")));
    CHECK(has(run.err, "it has not been heard of for 1 s"));
    CHECK(has(run.err, concat("refrain launch: rank ", odd_one, " (", detail::host_name(), ") is still there and is ended")));
    CHECK(run.seconds < 8);
  }
}

TEST_CASE("a rank stuck in its own code: the collective's clock ends the group and names it, though it is alive") {
  const Variable timeout("REFRAIN_COLLECTIVE_TIMEOUT", "1");
  const ScratchDirectory scratch;
  const Launched run = launch_ranks(scratch, 3, "stuck 1", impatient());
  INFO(run.err);
  CHECK(run.code == 6);
  for (const std::string rank : {"0", "2"})
    CHECK(has(run.err, "[rank " + rank + "] lost rank 1 at step 3 in all_reduce(sum) of 1000 f32"));
  CHECK(has(run.err, "it has made 6 calls"));
}

TEST_CASE("a rank that leaves by an exception: the others hear so") {
  const ScratchDirectory scratch;
  const Launched run = launch_ranks(scratch, 3, "leave 1", impatient());
  INFO(run.err);
  CHECK(run.code == 1);
  CHECK(has(run.err, "[rank 0] lost rank 1 at step 3"));
  CHECK(has(run.err, "it ended the group: it left by an exception"));
  CHECK(run.seconds < 3.5);
}

TEST_CASE("a rank that ends before it has come to the group: nobody waits for it") {
  for (const int odd_one : {0, 2}) {
    const ScratchDirectory scratch;
    const Launched run = launch_ranks(scratch, 3, concat("absent ", odd_one), impatient());
    INFO(run.err);
    CHECK(run.code == 5);
    CHECK(has(run.err, concat("[rank 1] lost rank ", odd_one, " at step -1 in rendezvous: rank ", odd_one)));
    CHECK(has(run.err, odd_one == 0 ? "nobody answers at 127.0.0.1:" : "its process ended: exit code 5"));
    CHECK(run.seconds < 1.5);
  }
}

TEST_CASE("abort: the reason reaches the others, and operations under way end") {
  std::vector<std::string> heard(3);
  gloo_ranks(3, [&](ProcessGroup& group) {
    const Tensor t = zeros({5'000'000}, DType::f32, group.device());
    group.set_step(7);
    group.barrier();
    if (group.rank() == 2) {
      std::this_thread::sleep_for(milliseconds(200));  // the others are inside the operation
      return group.abort("the disk is full");
    }
    try {
      group.all_reduce(t, ReduceOp::sum).wait();
    } catch (const RankLost& lost) {
      heard[std::size_t(group.rank())] = concat(lost.rank, lost.step, lost.operation, lost.what());
    }
    try {
      group.barrier();
    } catch (const RankLost&) {
      heard[std::size_t(group.rank())] += " again";
    }
  });
  for (const int rank : {0, 1}) {
    INFO(heard[std::size_t(rank)]);
    CHECK(has(heard[std::size_t(rank)], "27all_reduce(sum) of 5000000 f32rank 2 ("));
    CHECK(has(heard[std::size_t(rank)], "the disk is full"));
    CHECK(has(heard[std::size_t(rank)], " again"));
  }
}

TEST_CASE("an operation that is not waited for ends the group, and its tensors are nobody's afterwards") {
  std::vector<int> lost(2, 0);
  gloo_ranks(2, [&](ProcessGroup& group) {
    const Tensor t = zeros({100}, DType::f32, group.device());
    if (group.rank() == 1) {
      group.barrier();  // the other one is no longer forming its group
      { const Work given_up = group.all_reduce(t, ReduceOp::sum); }
      return;
    }
    try {
      group.barrier();  // may itself be what ends
      std::this_thread::sleep_for(milliseconds(300));
      group.all_reduce(t, ReduceOp::sum).wait();
    } catch (const RankLost& error) {
      lost[0] = has(error.what(), "it gave up all_reduce(sum) of 100 f32");
    }
  });
  CHECK(lost[0] == 1);
}

TEST_CASE("calls that differ in the first step, or in check mode, are an error that names both") {
  const auto differ = [](ProcessGroup& group, int kind) {
    const auto tensor = [&](std::int64_t count, DType dtype) { return zeros({count}, dtype, group.device()); };
    const bool is_odd = group.rank() == 1;
    const std::vector<std::int64_t> counts = is_odd ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{2, 1};
    if (kind == 0) group.all_reduce(tensor(is_odd ? 4 : 5, DType::f32), ReduceOp::sum).wait();
    if (kind == 1) group.all_reduce(tensor(4, is_odd ? DType::i32 : DType::f32), ReduceOp::sum).wait();
    if (kind == 2) group.all_reduce(tensor(4, DType::f32), is_odd ? ReduceOp::sum : ReduceOp::max).wait();
    if (kind == 3 && is_odd) group.barrier();
    if (kind == 3 && !is_odd) group.broadcast(tensor(2, DType::f32), 0).wait();
    if (kind == 4)
      group.reduce_scatter(tensor(3, DType::f32), tensor(counts[std::size_t(group.rank())], DType::f32), counts, ReduceOp::sum)
          .wait();
  };
  const char* named[] = {"rank 0's call 1 is all_reduce(sum) of 5 f32, rank 1's call 1 is all_reduce(sum) of 4 f32",
                         "of 4 f32, rank 1's call 1 is all_reduce(sum) of 4 i32", "rank 0's call 1 is all_reduce(max) of 4 f32",
                         "is broadcast from rank 0 of 2 f32, rank 1's call 1 is barrier", "in other pieces"};
  for (int kind = 0; kind < 5; ++kind) {
    std::vector<std::string> heard(2);
    gloo_ranks(2, [&](ProcessGroup& group) {
      try {
        differ(group, kind);
      } catch (const CallMismatch& error) {
        heard[std::size_t(group.rank())] = error.what();
      }
    });
    INFO(heard[0]);
    CHECK(has(heard[0], named[kind]));
    CHECK(heard[0] == heard[1]);
  }
  // Later steps: in check mode at once, without it when the operation is overdue. Nobody's memory is written either way.
  for (const bool check_every_call : {true, false}) {
    GroupOptions options;
    options.check_every_call = check_every_call;
    options.collective_timeout = milliseconds(500);
    std::vector<std::string> heard(2);
    gloo_ranks(
        2,
        [&](ProcessGroup& group) {
          for (int step = 0; step < 3; ++step) {
            group.set_step(step);
            group.barrier();
          }
          try {
            differ(group, 0);
          } catch (const CallMismatch&) {
            heard[std::size_t(group.rank())] = "mismatch";
          } catch (const RankLost& error) {
            heard[std::size_t(group.rank())] = has(error.what(), "for 0.5 s") ? "overdue" : error.what();
          }
        },
        options);
    for (const std::string& text : heard) CHECK(text == (check_every_call ? "mismatch" : "overdue"));
  }
}

TEST_CASE("ranks that end well at different times disturb nobody") {
  const ScratchDirectory scratch;
  const Launched run = launch_ranks(scratch, 4, "steps 5");
  INFO(run.err);
  CHECK(run.code == 0);
  CHECK(run.err.empty());
  std::vector<int> done(3, 0);
  gloo_ranks(3, [&](ProcessGroup& group) {
    group.barrier();
    if (group.rank() == 0) std::this_thread::sleep_for(milliseconds(400));  // the others are at the door
    done[std::size_t(group.rank())] = 1;
  });
  CHECK(done == std::vector<int>{1, 1, 1});
}

}  // namespace refrain

#endif  // REFRAIN_HAS_GLOO
