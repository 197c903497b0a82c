// Runs hidden cases of this test program as ranks under a launcher in a process of its own, and collects what they print.
#pragma once

#include <refrain/core/io/file.h>
#include <refrain/dist/launch.h>
#include <refrain/tests/support/scratch_directory.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace refrain::testing {

struct Launched {
  int code;  // 128 and the signal where one ended the launcher
  double seconds;
  std::string out, err;
};

// The launcher's process; `body` says what the ranks do (rank_bodies.cpp).
inline pid_t start_launcher(const ScratchDirectory& scratch, int num_ranks, const std::string& body, LaunchOptions options = {}) {
  options.num_ranks = num_ranks;
  options.command = {"/proc/self/exe", "rank body"};
  const pid_t pid = fork();
  if (pid != 0) return pid;
  setpgid(0, 0);
  setenv("REFRAIN_TEST_BODY", body.c_str(), 1);
  setenv("REFRAIN_TEST_DIRECTORY", scratch.path().c_str(), 1);
  dup2(open((scratch / "out").c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600), STDOUT_FILENO);
  dup2(open((scratch / "err").c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600), STDERR_FILENO);
  _exit(launch(options));
}

inline Launched wait_for_launcher(const ScratchDirectory& scratch, pid_t pid) {
  const auto start = std::chrono::steady_clock::now();
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) continue;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), seconds, read_text_file(scratch / "out"),
          read_text_file(scratch / "err")};
}

inline Launched launch_ranks(const ScratchDirectory& scratch, int num_ranks, const std::string& body,
                             const LaunchOptions& options = {}) {
  return wait_for_launcher(scratch, start_launcher(scratch, num_ranks, body, options));
}

// The process numbers that ranks have written, once all of them have; empty where they have not.
inline std::vector<pid_t> wait_for_pids(const ScratchDirectory& scratch, int num_ranks, double seconds = 20) {
  for (double waited = 0; waited < seconds; waited += 0.02) {
    std::vector<pid_t> pids;
    for (int rank = 0; rank < num_ranks; ++rank) {
      std::ifstream file(scratch / ("pid" + std::to_string(rank)));
      if (pid_t pid = 0; file >> pid) pids.push_back(pid);
    }
    if (pids.size() == std::size_t(num_ranks)) return pids;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return {};
}

}  // namespace refrain::testing
