// Ranks that are threads of one process: a process group for tests, with reductions as its contract says and, on request,
// transfers that take wall time and no processor.
#pragma once

#include <refrain/dist/process_group.h>

#include <chrono>
#include <functional>
#include <memory>

namespace refrain::testing {

struct ThreadWorldOptions {
  // Wall time of a transfer of so many sent bytes; null: none. Transfers of one rank follow one another.
  std::function<std::chrono::duration<double>(std::int64_t bytes)> transfer_time = {};
};

// Threads that stay from run to run, each a rank of a new world every time.
class RankThreads {
 public:
  explicit RankThreads(int world_size);
  ~RankThreads();
  RankThreads(const RankThreads&) = delete;
  RankThreads& operator=(const RankThreads&) = delete;

  // Runs f(group) on every thread, each with a new CPU device of its own, and throws what the first rank to fail threw.
  void run(const std::function<void(std::shared_ptr<ProcessGroup>)>& f, const ThreadWorldOptions& options = {});

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The same, once.
void run_ranks(int world_size, const std::function<void(std::shared_ptr<ProcessGroup>)>& f, const ThreadWorldOptions& options = {});

}  // namespace refrain::testing
