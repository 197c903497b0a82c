// Subcommands of `refrain`: arguments in, library calls, text out.
#pragma once

#include <string>
#include <vector>

namespace refrain::apps {

// What the process returns.
enum ExitCode : int {
  kDone = 0,
  kDefect = 1,        // an error of Refrain's own
  kUsage = 2,
  kBadData = 3,
  kOutOfMemory = 4,
  kNonFinite = 5,
  kRankLost = 6,
  kStorage = 7,
  kInterrupted = 75,  // EX_TEMPFAIL: to be resumed
};

int train_command(const std::vector<std::string>& arguments);
int plan_command(const std::vector<std::string>& arguments);
int fit_command(const std::vector<std::string>& arguments);
int ladder_command(const std::vector<std::string>& arguments);
int report_command(const std::vector<std::string>& arguments);
int evaluate_command(const std::vector<std::string>& arguments);
int launch_command(const std::vector<std::string>& arguments);

}  // namespace refrain::apps
