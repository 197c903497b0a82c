// Threads that carry a group take no signals: those belong to the program's own threads.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace refrain::detail {

// This thread takes none while it lives; a thread that is started meanwhile never does.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old_);
  }
  ~NoSignals() { pthread_sigmask(SIG_SETMASK, &old_, nullptr); }
  NoSignals(const NoSignals&) = delete;
  NoSignals& operator=(const NoSignals&) = delete;

 private:
  sigset_t old_;
};

template <class F>
std::thread thread_without_signals(F&& f) {
  const NoSignals no_signals;
  return std::thread(std::forward<F>(f));
}

}  // namespace refrain::detail
