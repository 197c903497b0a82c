// Ranks that are threads of one process: a process group for tests, with reductions as its contract says and, on request,
// transfers that take wall time and no processor.
#pragma once

#include <refrain/dist/process_group.h>

#include <chrono>
#include <functional>
#include <memory>

namespace refrain::testing {

struct ThreadWorldOptions {
  // Wall time of a transfer of so many sent bytes; null: none. Transfers of one group follow one another.
  std::function<std::chrono::duration<double>(std::int64_t bytes)> transfer_time = {};
};

// Runs f(group) on `world_size` threads, each with a CPU device of its own, and throws what the first rank to fail threw.
void run_ranks(int world_size, const std::function<void(std::shared_ptr<ProcessGroup>)>& f, const ThreadWorldOptions& options = {});

}  // namespace refrain::testing
