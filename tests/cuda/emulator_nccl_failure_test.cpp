// How groups of CUDA ranks end: ranks that leave, are stuck, or whose NCCL fails, and calls that differ. Survivors name rank, host,
// step and operation, and no memory is left to a stream.
#include <refrain/kernels/emulator/libraries/nccl.h>
#include <refrain/kernels/emulator/options.h>
#include <refrain/tests/cuda/nccl_ranks.h>
#include <refrain/tests/cuda/parity.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>

using namespace refrain;
using std::chrono::milliseconds;

namespace {

using Clock = std::chrono::steady_clock;

struct Ended {
  std::string what = "nothing";
  int rank = -2;  // that is lost; -2: it was no RankLost
  std::int64_t step = -2;
  std::string host, operation;
  bool is_mismatch = false, is_rendezvous = false;
};

std::vector<Ended> ends_of(int world_size, const std::function<void(ProcessGroup&)>& f, const GroupOptions& options = {}) {
  std::vector<Ended> ends;
  for (const std::exception_ptr& error : ended_nccl_ranks(world_size, f, options)) {
    Ended& end = ends.emplace_back();
    try {
      if (error) std::rethrow_exception(error);
    } catch (const RankLost& lost) {
      end = {lost.what(), lost.rank, lost.step, lost.host, lost.operation, false, false};
    } catch (const std::exception& other) {
      end.what = other.what();
      end.is_mismatch = dynamic_cast<const CallMismatch*>(&other) != nullptr;
      end.is_rendezvous = dynamic_cast<const RendezvousError*>(&other) != nullptr;
    }
  }
  CHECK(emulator::nccl_record().num_communicators == 0);
  return ends;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Tensor ones(const ProcessGroup& group, std::int64_t count) { return full({count}, 1, DType::f32, group.device()); }

void one_step(ProcessGroup& group, std::int64_t step) {
  group.set_step(step);
  group.all_reduce(ones(group, 5000), ReduceOp::sum).wait();
}

}  // namespace

TEST_CASE("nccl: a rank that leaves by an exception is named by all others, at once, in what they waited for") {
  for (const int odd_one : {0, 2}) {
    const Clock::time_point start = Clock::now();
    const std::vector<Ended> ends = ends_of(4, [&](ProcessGroup& group) {
      for (int step = 1; step < 4; ++step) one_step(group, step);
      if (group.rank() == odd_one) throw std::runtime_error("out of luck");
      one_step(group, 3);
      one_step(group, 4);
    });
    for (int rank = 0; rank < 4; ++rank) {
      const Ended& end = ends[std::size_t(rank)];
      INFO(end.what);
      if (rank == odd_one) {
        CHECK(end.what == "out of luck");
        continue;
      }
      CHECK(end.rank == odd_one);
      CHECK(end.step >= 3);
      CHECK(!end.host.empty());
      CHECK(has(end.what, "it left by an exception"));
      CHECK(has(end.what, concat("rank ", rank, " (")));
      CHECK(has(end.operation, "all_reduce(sum) of 5000 f32"));
    }
    CHECK(Clock::now() - start < std::chrono::seconds(4));
  }
}

TEST_CASE("nccl: work under way ends for who waits for it when another rank aborts") {
  const std::vector<Ended> ends = ends_of(3, [&](ProcessGroup& group) {
    one_step(group, 1);
    group.set_step(2);
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(100));  // the others' streams stand still by now
      group.abort("its disk is full");
      return;
    }
    const Tensor a = ones(group, 100'000), b = ones(group, 100);
    Work first = group.all_reduce(a, ReduceOp::sum), second = group.all_reduce(b, ReduceOp::mean);
    try {
      second.wait();
    } catch (const RankLost&) {
      first.wait();
    }
  });
  for (const int rank : {0, 2}) {
    INFO(ends[std::size_t(rank)].what);
    CHECK(ends[std::size_t(rank)].rank == 1);
    CHECK(ends[std::size_t(rank)].operation == "all_reduce(sum) of 100000 f32");
    CHECK(has(ends[std::size_t(rank)].what, "its disk is full"));
  }
}

TEST_CASE("nccl: a rank stuck in its own code is named when the collective's clock has run out") {
  GroupOptions options;
  options.collective_timeout = milliseconds(1500);
  options.heartbeat_timeout = milliseconds(2000);  // several beats, which say where a rank is, within a collective's time
  const Clock::time_point start = Clock::now();
  const std::vector<Ended> ends = ends_of(3, [&](ProcessGroup& group) {
    for (int step = 1; step < 4; ++step) one_step(group, step);
    if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(3000));
    one_step(group, 4);
  }, options);
  for (const Ended& end : ends) {
    INFO(end.what);
    CHECK(end.rank == 1);
    CHECK(end.step == 4);
  }
  CHECK(has(ends[0].what, "waits in"));
  CHECK(Clock::now() - start < std::chrono::seconds(8));
}

TEST_CASE("nccl: an error that NCCL meets on one rank ends all, and names that rank and NCCL's words") {
  const std::vector<Ended> ends = ends_of(3, [&](ProcessGroup& group) {
    one_step(group, 1);
    group.barrier();
    if (group.rank() == 0) emulator::nccl_record().failing_rank = 2;
    one_step(group, 2);
    one_step(group, 2);
  });
  emulator::nccl_record().failing_rank = -1;
  for (const Ended& end : ends) {
    INFO(end.what);
    CHECK(end.rank == 2);
    CHECK(has(end.what, "NCCL: "));
    CHECK(has(end.what, "unhandled system error (the test wants it)"));
  }
}

TEST_CASE("nccl: calls that differ in the first step are named on all ranks, before anything is sent") {
  const std::vector<Ended> ends = ends_of(3, [&](ProcessGroup& group) {
    one_step(group, 1);
    const Tensor t = full({100}, group.rank(), DType::f32, group.device());
    group.set_step(1);
    try {
      group.all_reduce(t, group.rank() == 2 ? ReduceOp::max : ReduceOp::sum).wait();
    } catch (const CallMismatch&) {
      if (t.to_vector<float>() != std::vector<float>(100, float(group.rank()))) throw std::runtime_error("the tensor was written");
      throw;
    }
  });
  for (const Ended& end : ends) {
    CHECK(end.is_mismatch);
    CHECK(end.what ==
          "the ranks' calls differ: rank 0's call 2 is all_reduce(sum) of 100 f32, rank 2's call 2 is all_reduce(max) of 100 f32, step 1");
  }
}

TEST_CASE("nccl: later calls that differ in size never meet, and the clock names a rank") {
  GroupOptions options;
  options.collective_timeout = milliseconds(500);
  const std::vector<Ended> ends = ends_of(2, [&](ProcessGroup& group) {
    one_step(group, 1);
    group.set_step(2);
    group.all_reduce(ones(group, group.rank() == 0 ? 50'000 : 60'000), ReduceOp::sum).wait();
  }, options);
  for (const Ended& end : ends) {
    INFO(end.what);
    CHECK(end.rank >= 0);
    CHECK(end.step == 2);
  }
}

TEST_CASE("nccl: later calls that differ, but not in size, are an error on all ranks") {
  const std::vector<Ended> ends = ends_of(3, [&](ProcessGroup& group) {
    one_step(group, 1);
    group.set_step(2);
    const Tensor t = ones(group, 8000), u = full({8000}, 1, DType::i32, group.device());
    group.all_reduce(group.rank() == 1 ? u : t, ReduceOp::sum).wait();
  });
  for (std::size_t rank = 0; rank < 3; ++rank) {
    INFO(ends[rank].what);
    CHECK(ends[rank].is_mismatch);
    CHECK(has(ends[rank].what, concat("rank ", rank, "'s call 2 is all_reduce(sum) of ", rank == 1 ? "8000 i32" : "8000 f32", ", rank ")));
    CHECK(has(ends[rank].what, "'s another, step 2"));
  }
}

TEST_CASE("nccl: with every call compared a difference is named in any step") {
  GroupOptions options;
  options.check_every_call = true;
  const std::vector<Ended> ends = ends_of(2, [&](ProcessGroup& group) {
    one_step(group, 1);
    group.set_step(2);
    group.all_reduce(ones(group, group.rank() == 0 ? 50'000 : 60'000), ReduceOp::sum).wait();
  }, options);
  for (const Ended& end : ends) CHECK(end.is_mismatch);
}

TEST_CASE("nccl: a message that is not the one expected is an error, not a value") {
  const std::vector<Ended> ends = ends_of(2, [&](ProcessGroup& group) {
    const Tensor a = ones(group, 10), b = ones(group, 10);
    if (group.rank() == 0) {
      group.send(a, 1, 1).wait();
      group.send(b, 1, 2).wait();
    } else {
      group.receive(a, 0, 2).wait();
    }
  });
  CHECK(ends[1].is_mismatch);
  CHECK(has(ends[1].what, "receive from rank 0 with tag 2 of 10 f32: rank 0 has sent another message"));
  CHECK(ends[0].what != "nothing");
}

TEST_CASE("nccl: work that is destroyed while it is under way ends the group, and nobody writes to its memory") {
  const std::vector<Ended> ends = ends_of(2, [&](ProcessGroup& group) {
    one_step(group, 1);
    group.set_step(2);
    if (group.rank() == 1) {
      const Tensor t = ones(group, 100'000);
      { const Work forgotten = group.all_reduce(t, ReduceOp::sum); }
      return;
    }
    std::this_thread::sleep_for(milliseconds(200));
    group.all_reduce(ones(group, 100'000), ReduceOp::sum).wait();
  });
  INFO(ends[0].what);
  CHECK(ends[0].rank == 1);
  CHECK(has(ends[0].what, "it gave up all_reduce(sum) of 100000 f32"));
}

TEST_CASE("nccl: two ranks on one GPU, and a rank that does not come, are errors of the rendezvous") {
  setenv("REFRAIN_EMULATOR_DEVICES", "4", 1);
  const auto problems = [](int world_size, int num_present, bool is_same_device) {
    GroupOptions options;
    options.rendezvous_timeout = milliseconds(is_same_device ? 20'000 : 1'000);
    const int port = detail::port_of(detail::listen_on("127.0.0.1", 0));
    std::vector<std::string> texts(std::size_t(num_present), "no problem");
    std::vector<std::thread> threads;
    for (int rank = 0; rank < num_present; ++rank)
      threads.emplace_back([&, rank] {
        try {
          const Place place{.rank = rank, .world_size = world_size, .master_port = port, .token = "secret"};
          join_group(place, Device::new_cuda(is_same_device ? 0 : rank), options);
        } catch (const Error& error) {
          texts[std::size_t(rank)] = error.what();
        }
      });
    for (std::thread& thread : threads) thread.join();
    return texts;
  };
  bool is_named = false;
  for (const std::string& text : problems(2, 2, true)) {
    INFO(text);
    is_named = is_named || has(text, "Duplicate GPU detected");
    CHECK(text != "no problem");
  }
  CHECK(is_named);
  for (const std::string& text : problems(3, 2, false)) CHECK(text != "no problem");
  unsetenv("REFRAIN_EMULATOR_DEVICES");
  CHECK(emulator::nccl_record().num_communicators == 0);
}

TEST_CASE("emulator without NCCL", "[.missing_nccl]") {
  for (const Ended& end : ends_of(2, [](ProcessGroup&) {})) {
    CHECK(end.is_rendezvous);
    CHECK(end.what == "more than one rank on CUDA devices needs NCCL: libnccl.so.2: hidden by the emulator's options");
  }
}

TEST_CASE("nccl: without the library a second rank is refused, with the reason") {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command = "REFRAIN_EMULATOR_HIDE=libnccl REFRAIN_EMULATOR_REPORT= '" + program + "' '[.missing_nccl]' 2>&1";
  CHECK(std::system(command.c_str()) == 0);
}
