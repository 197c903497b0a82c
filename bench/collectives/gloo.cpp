// all_reduce on CPUs, ours (sums in rank order) and Gloo's own ring in turn: medians of wall time, and their ratio.
#include <refrain/bench/collectives/ranks.h>

#ifdef REFRAIN_HAS_GLOO

#include <refrain/dist/join_group.h>
#include <refrain/dist/net/socket.h>

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <csignal>
#include <filesystem>
#include <string>

namespace refrain::bench {

namespace {

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

int run_gloo(const std::vector<int>& world_sizes, int repetitions) {
  std::signal(SIGPIPE, SIG_IGN);
  std::printf("| ranks | all_reduce of | ours | Gloo's ring | ring / ours |\n| --- | --- | --- | --- | --- |\n");
  std::fflush(stdout);
  for (const int world_size : world_sizes) {
    const int port = detail::port_of(detail::listen_on("127.0.0.1", 0));
    char directory[] = "/tmp/refrain-collectives-XXXXXX";
    if (mkdtemp(directory) == nullptr) return 1;
    const bool are_well = run_in_processes(world_size, [&](int rank) { run_rank(rank, world_size, port, directory, repetitions); });
    std::error_code error;
    std::filesystem::remove_all(directory, error);
    if (!are_well) return 1;
  }
  return 0;
}

}  // namespace refrain::bench

#else

int refrain::bench::run_gloo(const std::vector<int>&, int) {
  std::puts("this build has no Gloo (Debian's libgloo-dev)");
  return 0;
}

#endif
