#include "interrupt.h"

#include <csignal>
#include <initializer_list>

#include <signal.h>  // sigaction

namespace refrain::apps {

namespace {

volatile std::sig_atomic_t interrupted = 0;

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = SA_RESETHAND | SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    // What started this process may have chosen to have a signal ignored, as nohup does.
    struct sigaction old {};
    if (sigaction(number, nullptr, &old) == 0 && old.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);
  }
  // A file-size limit is to come back as an error of write(), like a full disk, not as the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
}

bool is_interrupted() { return interrupted != 0; }

}  // namespace refrain::apps
