// all_reduce over ranks of this machine, ours (sums in rank order) and Gloo's own ring in turn: medians of wall time, and their
// ratio.
//
//   bench_collectives [--ranks 2,4] [--repetitions 9]
#ifdef REFRAIN_HAS_GLOO

#include <refrain/core/check.h>
#include <refrain/dist/join_group.h>
#include <refrain/dist/net/socket.h>

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

namespace {

using namespace refrain;

double milliseconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return 1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run_rank(int rank, int world_size, int port, const std::string& directory, int repetitions) {
  const auto group =
      join_group({.rank = rank, .world_size = world_size, .master_port = port, .token = "bench"}, Device::cpu(), {});
  gloo::rendezvous::FileStore store(directory);
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, world_size);
  context->connectFullMesh(store, device);

  for (const std::int64_t bytes : {4LL << 10, 64LL << 10, 1LL << 20, 25LL << 20, 100LL << 20}) {
    const Tensor t = full({bytes / 4}, 1, DType::f32);
    const auto ours = [&] { group->all_reduce(t, ReduceOp::sum).wait(); };
    const auto ring = [&] {
      gloo::AllreduceOptions options(context);
      options.setOutput(t.data<float>(), std::size_t(t.numel()));
      options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
      gloo::allreduce(options);
    };
    std::vector<double> times[2];
    const int calls = bytes < (1 << 20) ? 50 : bytes < (4 << 20) ? 10 : 1;  // small ones are timed many at once
    for (int i = 0; i < repetitions + 1; ++i) {
      for (const bool is_ours : {true, false}) {
        group->barrier();
        const double time = milliseconds([&] {
          for (int k = 0; k < calls; ++k) is_ours ? ours() : ring();
        });
        if (i > 0) times[is_ours ? 0 : 1].push_back(time / calls);  // the first touches memory
        fill_values(t, 1);
      }
    }
    if (rank == 0) {
      std::printf("| %d | %10.3f MiB | %9.3f ms | %9.3f ms | %.2f |\n", world_size, double(bytes) / (1 << 20), median(times[0]),
                  median(times[1]), median(times[1]) / median(times[0]));
      std::fflush(stdout);
    }
  }
  group->barrier();
}

}  // namespace

int main(int count, char** values) {
  std::string ranks = "2,4";
  int repetitions = 9;
  for (int i = 1; i + 1 < count; i += 2) {
    if (std::string(values[i]) == "--ranks") ranks = values[i + 1];
    if (std::string(values[i]) == "--repetitions") repetitions = std::max(1, std::atoi(values[i + 1]));
  }
  std::signal(SIGPIPE, SIG_IGN);
  std::printf("| ranks | all_reduce of | ours | Gloo's ring | ring / ours |\n| --- | --- | --- | --- | --- |\n");
  std::fflush(stdout);
  std::istringstream list(ranks);
  for (std::string number; std::getline(list, number, ',');) {
    const int world_size = std::atoi(number.c_str());
    const int port = detail::port_of(detail::listen_on("127.0.0.1", 0));
    char directory[] = "/tmp/refrain-collectives-XXXXXX";
    if (mkdtemp(directory) == nullptr) return 1;
    std::vector<pid_t> children;
    for (int rank = 0; rank < world_size; ++rank) {
      const pid_t pid = fork();
      if (pid == 0) {
        try {
          run_rank(rank, world_size, port, directory, repetitions);
        } catch (const std::exception& error) {
          std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
          std::_Exit(1);
        }
        std::_Exit(0);
      }
      children.push_back(pid);
    }
    int worst = 0;
    for (const pid_t pid : children) {
      int status = 0;
      waitpid(pid, &status, 0);
      worst = std::max(worst, status);
    }
    std::error_code error;
    std::filesystem::remove_all(directory, error);
    if (worst != 0) return 1;
  }
  return 0;
}

#else

#include <cstdio>

int main() {
  std::puts("this build has no Gloo (Debian's libgloo-dev)");
  return 0;
}

#endif
