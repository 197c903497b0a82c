#include <refrain/kernels/emulator/options.h>
#include <refrain/kernels/emulator/watchdog.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>
#include <unistd.h>

namespace refrain::emulator {

namespace {

struct Watchdog {
  std::mutex mutex;
  std::string kernel;
  std::uint64_t count = 0;  // of starts and ends: odd while a kernel runs
  pid_t process = 0;        // whose thread watches: a fork takes none along

  // Looks once a second: launches are many and short, and must not wake anybody.
  void watch() {
    std::uint64_t seen = 0;
    for (int seconds = 0;; ++seconds) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      const std::lock_guard lock(mutex);
      if (count % 2 == 0 || count != seen) seconds = 0;
      seen = count;
      const int limit = options().timeout_seconds;
      if (limit <= 0 || seconds < limit) continue;
      std::fprintf(stderr, "\nemulator: %s has run for %d s and is taken for a hang (REFRAIN_EMULATOR_TIMEOUT)\n", kernel.c_str(), limit);
      std::abort();
    }
  }
};

Watchdog& watchdog() {
  static Watchdog* dog = new Watchdog;  // never destroyed: its thread runs until the process ends
  return *dog;
}

}  // namespace

WatchdogScope::WatchdogScope(std::string_view kernel) {
  Watchdog& dog = watchdog();
  const std::lock_guard lock(dog.mutex);
  dog.kernel = kernel;
  ++dog.count;
  if (dog.process != getpid()) std::thread([&dog] { dog.watch(); }).detach();
  dog.process = getpid();
}

WatchdogScope::~WatchdogScope() {
  Watchdog& dog = watchdog();
  const std::lock_guard lock(dog.mutex);
  ++dog.count;
}

}  // namespace refrain::emulator
