// Ranks of a Gloo group as threads of the test's process, each with a device and a group of its own, on a free port.
#pragma once

#include <refrain/dist/join_group.h>
#include <refrain/dist/net/socket.h>

#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace refrain::testing {

inline int free_port() { return detail::port_of(detail::listen_on("127.0.0.1", 0)); }

// Runs f(group) on every rank and throws what the lowest rank that failed threw. Every group is destroyed before that.
inline void gloo_ranks(int world_size, const std::function<void(ProcessGroup&)>& f, const GroupOptions& options = {}) {
  const int port = free_port();
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        const Place place{.rank = rank, .world_size = world_size, .master_port = port, .token = "secret"};
        const std::unique_ptr<ProcessGroup> group = join_group(place, Device::new_cpu(), options);
        f(*group);
      } catch (...) {
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace refrain::testing
