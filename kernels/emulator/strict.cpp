#include <refrain/kernels/emulator/strict.h>

#include <csignal>
#include <unistd.h>

namespace refrain::emulator {

namespace {

const char* watched_base = nullptr;
std::size_t watched_bytes = 0;
struct sigaction before;

void on_fault(int signal, siginfo_t* info, void*) {
  const auto offset = std::size_t(static_cast<const char*>(info->si_addr) - watched_base);
  if (offset < watched_bytes) {
    constexpr char message[] = "\nemulator: the host followed an address of device memory, or a kernel left the memory that is there\n";
    static_cast<void>(!write(STDERR_FILENO, message, sizeof message - 1));
  }
  // The access is tried again, and meets who listened before.
  sigaction(signal, &before, nullptr);
}

}  // namespace

void watch_device_accesses(const char* base, std::size_t bytes) {
  watched_base = base;
  watched_bytes = bytes;
  struct sigaction now;
  sigaction(SIGSEGV, nullptr, &now);
  if ((now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &on_fault) return;
  before = now;
  struct sigaction mine {};
  mine.sa_sigaction = &on_fault;
  mine.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &mine, nullptr);
}

}  // namespace refrain::emulator
