// Threads that carry a group take no signals: those belong to the program's own threads.
#pragma once

#include <cerrno>
#include <csignal>
#include <ctime>
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

// Writing to a broken connection is an error here and no signal, for code that writes without MSG_NOSIGNAL.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&set_);
    sigaddset(&set_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set_, &old_);
  }
  ~NoBrokenPipe() {
    constexpr timespec kNow{};
    while (!was_pending_ && sigtimedwait(&set_, nullptr, &kNow) < 0 && errno == EINTR) continue;
    pthread_sigmask(SIG_SETMASK, &old_, nullptr);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  sigset_t set_, old_;
  bool was_pending_ = false;
};

template <class F>
std::thread thread_without_signals(F&& f) {
  const NoSignals no_signals;
  return std::thread(std::forward<F>(f));
}

}  // namespace refrain::detail
