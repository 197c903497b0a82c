// Ranks that are processes of this machine, and medians of times.
#pragma once

#include <refrain/core/check.h>

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace refrain::bench {

inline double milliseconds(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return 1e3 * std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Whether f(rank) ended well on all of them. Nothing may be started in this process before: they are forks.
inline bool run_in_processes(int world_size, const std::function<void(int)>& f) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < world_size; ++rank) {
    const pid_t pid = fork();
    if (pid == 0) {
      try {
        f(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        std::_Exit(1);
      }
      std::fflush(stdout);
      std::_Exit(0);
    }
    children.push_back(pid);
  }
  bool are_well = true;
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    are_well = are_well && status == 0;
  }
  return are_well;
}

// One a file. Print a table; what they return is the program's exit code.
int run_gloo(const std::vector<int>& world_sizes, int repetitions);
int run_cuda(const std::vector<int>& world_sizes, int repetitions);

}  // namespace refrain::bench
