// Ends the process with a message when a launch takes longer than REFRAIN_EMULATOR_TIMEOUT: a kernel that waits in a loop for
// another block or thread would otherwise hang the tests.
#pragma once

#include <string_view>

namespace refrain::emulator {

class WatchdogScope {
 public:
  explicit WatchdogScope(std::string_view kernel);
  ~WatchdogScope();
  WatchdogScope(const WatchdogScope&) = delete;
};

}  // namespace refrain::emulator
