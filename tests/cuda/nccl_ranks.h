// Ranks of an NCCL group as threads of the test's process, each with an emulated GPU and a group of its own.
#pragma once

#include <refrain/dist/join_group.h>
#include <refrain/dist/net/socket.h>

#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace refrain {

// How each rank ended: what it threw, or nothing.
using RankErrors = std::vector<std::exception_ptr>;

// Runs f(group) on every rank. Every group is destroyed before this returns.
inline RankErrors ended_nccl_ranks(int world_size, const std::function<void(ProcessGroup&)>& f, const GroupOptions& options = {}) {
  setenv("REFRAIN_EMULATOR_DEVICES", "4", 1);
  const int port = detail::port_of(detail::listen_on("127.0.0.1", 0));
  RankErrors errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const Place place{.rank = rank, .world_size = world_size, .local_rank = rank, .master_port = port, .token = "secret"};
        const std::unique_ptr<ProcessGroup> group = join_group(place, Device::new_cuda(rank), options);
        f(*group);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  unsetenv("REFRAIN_EMULATOR_DEVICES");
  return errors;
}

// The same, and throws what the lowest rank that failed threw.
inline void nccl_ranks(int world_size, const std::function<void(ProcessGroup&)>& f, const GroupOptions& options = {}) {
  for (const std::exception_ptr& error : ended_nccl_ranks(world_size, f, options))
    if (error) std::rethrow_exception(error);
}

// Catch's assertions are for one thread.
class Count {
 public:
  void add(std::int64_t wrong) {
    const std::lock_guard lock(mutex_);
    total_ += wrong;
  }
  std::int64_t total() const { return total_; }

 private:
  std::mutex mutex_;
  std::int64_t total_ = 0;
};

}  // namespace refrain
