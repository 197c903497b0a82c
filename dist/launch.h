// Starts the ranks of one machine as processes, labels what they print, and sees every one of them to its end.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace refrain {

struct LaunchOptions {
  int num_ranks = 1;            // on this machine
  int num_nodes = 1, node = 0;  // machines, and which one this is: its ranks are node * num_ranks and the following
  std::string master_addr = "127.0.0.1";
  int master_port = 0;                    // 0: a free one, on one machine
  std::string token = {};                 // empty: a random one, on one machine
  int threads = 0;                        // a rank's; 0: REFRAIN_NUM_THREADS, else cores divided by ranks
  std::vector<std::string> command = {};  // program and its arguments
  // What the others have to end by themselves once one has failed, and after SIGTERM before SIGKILL.
  std::chrono::milliseconds grace{5000}, term_grace{3000};
};

// Returns 0 when all ranks ended so, else the code of the first that failed; 128 and the signal's number for one that a signal
// ended. Which, where and how is said on stderr. A rank that ended because another was lost (code 6) is not taken for the first
// where there is another. SIGINT, SIGTERM and SIGHUP are passed on. No rank outlives this process, whatever ends it.
// Call it from the main thread. Throws RendezvousError, StorageError.
int launch(const LaunchOptions& options);

}  // namespace refrain
