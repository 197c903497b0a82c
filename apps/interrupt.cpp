#include "interrupt.h"

#include <csignal>

#include <signal.h>

namespace refrain::apps {

namespace {

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  // A file-size limit is to come back as an error of write(), like a full disk, not as the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
}

bool is_interrupted() { return interrupted != 0; }

}  // namespace refrain::apps
