// all_reduce on GPUs, one a rank. One rank has no group: what is timed then is what a reduction is made of, a message of NCCL's from
// the rank to itself, and the kernel that combines two parts.
#include <refrain/bench/collectives/ranks.h>
#include <refrain/core/tensor.h>
#include <refrain/dist/join_group.h>
#include <refrain/dist/net/socket.h>
#include <refrain/dist/nccl/link.h>

#include <string>
#include <thread>

namespace refrain::bench {

namespace {

constexpr std::int64_t kSizes[] = {4LL << 10, 64LL << 10, 1LL << 20, 25LL << 20, 100LL << 20};
constexpr int kCalls = 10;  // timed together

// Without the first, which makes connections.
double median_of(int repetitions, const std::function<void()>& f) {
  std::vector<double> times;
  for (int i = 0; i < repetitions + 1; ++i) {
    const double time = milliseconds(f) / kCalls;
    if (i > 0) times.push_back(time);
  }
  return median(times);
}

void print(const char* what, int world_size, std::int64_t bytes, double ms, double moved) {
  std::printf("| %d | %s | %10.3f MiB | %9.4f ms | %8.1f GB/s |\n", world_size, what, double(bytes) / (1 << 20), ms, moved / ms / 1e6);
  std::fflush(stdout);
}

void run_one(int repetitions) {
  const Device device = Device::cuda();
  const detail::NcclLink::Patience patience = [] {};
  const auto link = detail::open_nccl_link(device, detail::new_nccl_id(), 0, 1, 4096, patience);
  link->attach();
  const auto timed = [&](const std::function<void()>& f) {
    return median_of(repetitions, [&] {
      for (int k = 0; k < kCalls; ++k) f();
      for (const auto mark = link->mark(); !mark->is_reached();) std::this_thread::yield();
    });
  };
  for (const std::int64_t bytes : kSizes) {
    const Tensor x = full({bytes / 4}, 1, DType::f32, device), y = full({bytes / 4}, 0, DType::f32, device);
    const Tensor others(y.storage(), device, DType::f32, {1, y.numel()}, {y.numel(), 1}, 0);
    device.synchronize();
    const detail::NcclMessage messages[] = {{0, true, x.address(), bytes}, {0, false, y.address(), bytes}};
    print("to itself", 1, bytes, timed([&] { link->exchange(messages, patience); }), double(bytes));
    print("max of 2", 1, bytes, timed([&] { link->reduce({.own = x, .others = others, .rank = 0, .op = ReduceOp::max, .out = x}); }),
          3 * double(bytes));
  }
}

void run_rank(int rank, int world_size, int port, int repetitions) {
  const Device device = Device::cuda(rank);
  const auto group =
      join_group({.rank = rank, .world_size = world_size, .local_rank = rank, .master_port = port, .token = "bench"}, device, {});
  for (const std::int64_t bytes : kSizes) {
    const Tensor t = full({bytes / 4}, 1, DType::f32, device);
    device.synchronize();
    group->barrier();
    const double ms = median_of(repetitions, [&] {
      for (int k = 0; k < kCalls; ++k) group->all_reduce(t, ReduceOp::mean).wait();
    });
    // The bytes that every rank sends, as for a ring.
    if (rank == 0) print("all_reduce", world_size, bytes, ms, 2.0 * (world_size - 1) / world_size * double(bytes));
  }
  group->barrier();
}

}  // namespace

int run_cuda(const std::vector<int>& world_sizes, int repetitions) {
  std::printf("| ranks | | of | time | rate |\n| --- | --- | --- | --- | --- |\n");
  std::fflush(stdout);
  for (const int world_size : world_sizes) {
    const int port = detail::port_of(detail::listen_on("127.0.0.1", 0));
    // In a process of its own, too, where it is one: nothing of CUDA may be started before the fork.
    const bool are_well = run_in_processes(world_size, [&](int rank) {
      if (world_size > 1) return run_rank(rank, world_size, port, repetitions);
      const std::string problem = detail::nccl_problem();
      check(problem.empty(), "NCCL cannot be used: ", problem);
      run_one(repetitions);
    });
    if (!are_well) return 1;
  }
  return 0;
}

}  // namespace refrain::bench
