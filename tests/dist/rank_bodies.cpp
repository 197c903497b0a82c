// What ranks do in tests that need processes: REFRAIN_TEST_BODY names it, and which rank has a part of its own in it.
#include <refrain/dist/join_group.h>
#include <refrain/dist/launch.h>
#include <refrain/tests/support/catch.h>

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <sstream>

namespace refrain {

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

// Renamed when whole, so that who waits for it reads all of it.
void write_pid(int rank) {
  if (variable("REFRAIN_TEST_DIRECTORY").empty()) return;
  const std::string path = variable("REFRAIN_TEST_DIRECTORY") + "/pid" + std::to_string(rank);
  std::ofstream(path + ".part") << getpid() << "\n";
  std::rename((path + ".part").c_str(), path.c_str());
}

// Steps of collectives until somebody is lost or `num_steps` have passed; `at_third` runs on the rank `odd_one` inside step 3.
int steps(int odd_one, int num_steps, void (*at_third)()) {
  try {
    const auto group = join_group(Device::cpu());
    write_pid(group->rank());
    for (int step = 1; step <= num_steps; ++step) {
      group->set_step(step);
      if (step == 3 && group->rank() == odd_one) {
        usleep(300'000);  // the others are inside the operation
        at_third();
      }
      const Tensor t = full({1000}, 1, DType::f32), large = full({200'000}, 1, DType::bf16);
      group->all_reduce(t, ReduceOp::sum).wait();
      Work work = group->all_reduce(large, ReduceOp::mean);
      group->barrier();
      work.wait();
    }
    return 0;
  } catch (const RankLost& lost) {
    std::fprintf(stderr, "lost rank %d at step %lld in %s: %s\n", lost.rank, static_cast<long long>(lost.step),
                 lost.operation.c_str(), lost.what());
    return 6;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "failed: %s\n", error.what());
    return 1;
  }
}

// Four ranks as a mesh of two by two, whose axes work at the same time; rank `odd_one` is killed in step 3.
int mesh_steps(int odd_one) {
  try {
    const auto world = join_group(Device::cpu());
    const int rank = world->rank();
    const auto row = world->split(std::vector<int>{rank / 2 * 2, rank / 2 * 2 + 1}),
               column = world->split(std::vector<int>{rank % 2, rank % 2 + 2});
    for (int step = 1; step < 1000; ++step) {
      world->set_step(step);
      if (step == 3 && rank == odd_one) {
        usleep(300'000);
        raise(SIGKILL);
      }
      const Tensor a = full({1000}, 1, DType::f32), b = full({2000}, 1, DType::f32);
      Work in_column = column->all_reduce(b, ReduceOp::mean);
      row->all_reduce(a, ReduceOp::sum).wait();
      in_column.wait();
    }
    return 0;
  } catch (const RankLost& lost) {
    std::fprintf(stderr, "lost rank %d at step %lld in %s: %s\n", lost.rank, static_cast<long long>(lost.step),
                 lost.operation.c_str(), lost.what());
    return 6;
  }
}

int run_body() {
  std::istringstream body(variable("REFRAIN_TEST_BODY"));
  std::string name;
  int odd_one = -1, value = 0;
  body >> name >> odd_one >> value;
  const Place place = place_from_environment();
  if (name == "places") {
    std::printf("place %d of %d, local %d of %d, threads %s\n", place.rank, place.world_size, place.local_rank,
                place.local_world_size, variable("REFRAIN_NUM_THREADS").c_str());
    std::fprintf(stderr, "without a newline");
    return 0;
  }
  if (name == "absent") return place.rank == odd_one ? 5 : steps(-1, 10, [] {});
  if (name == "exit") return place.rank == odd_one ? value : 0;
  if (name == "kill") return steps(odd_one, 1000, [] { raise(SIGKILL); });
  if (name == "mesh") return mesh_steps(odd_one);
  if (name == "stop") return steps(odd_one, 1000, [] { raise(SIGSTOP); });
  if (name == "stuck") return steps(odd_one, 1000, [] { usleep(60'000'000); });
  if (name == "leave") return steps(odd_one, 1000, [] { fail("gave up"); });
  if (name == "endless") return steps(-1, 1 << 30, [] {});
  if (name == "steps") return steps(-1, odd_one, [] {});
  if (name == "stubborn") {
    if (place.rank == 0) return 4;
    signal(SIGTERM, SIG_IGN);
    usleep(60'000'000);
  }
  if (name == "wait") {
    signal(SIGTERM, [](int) { _exit(75); });
    signal(SIGINT, [](int) { _exit(75); });
    write_pid(place.rank);
    usleep(60'000'000);
  }
  return 99;
}

}  // namespace

TEST_CASE("rank body", "[.]") {
  if (variable("REFRAIN_TEST_BODY").empty()) return;
  const int code = run_body();
  std::fflush(stdout);
  _exit(code);
}

// For kills.sh: a launcher of four ranks that do collectives for ever.
TEST_CASE("rank launcher", "[.]") {
  if (variable("REFRAIN_TEST_KILLS").empty()) return;
  LaunchOptions options;
  options.num_ranks = 4;
  options.command = {"/proc/self/exe", "rank body"};
  setenv("REFRAIN_TEST_BODY", "endless", 1);
  _exit(launch(options));
}

}  // namespace refrain
