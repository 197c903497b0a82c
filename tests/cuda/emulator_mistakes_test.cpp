// What the emulator says of kernels that are wrong, and that it says nothing of right ones.
#include <refrain/kernels/emulator/options.h>
#include <refrain/kernels/emulator/race.h>
#include <refrain/kernels/emulator/shared_memory.h>
#include <refrain/tests/cuda/emulator_kernels.h>
#include <refrain/tests/support/catch.h>

#include <csignal>
#include <functional>
#include <sys/wait.h>
#include <unistd.h>

namespace refrain::emulator_test {

namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

// What f writes to stderr in a process of its own that does not end well; empty where it does.
std::string last_words(const std::function<void()>& f) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    for (int signal : {SIGSEGV, SIGABRT, SIGFPE}) std::signal(signal, SIG_DFL);  // not the test framework's
    f();
    _exit(0);
  }
  close(ends[1]);
  std::string words;
  char buffer[4096];
  for (ssize_t n = read(ends[0], buffer, sizeof buffer); n > 0; n = read(ends[0], buffer, sizeof buffer)) words.append(buffer, std::size_t(n));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "" : "died: " + words;
}

}  // namespace

TEST_CASE("emulator: a race is found whatever the order of threads") {
  struct Case {
    std::string kernel;
    int threads, blocks;
    std::string kind;
  };
  for (const Case& c : std::vector<Case>{{"reverse_without_barrier", 64, 1, "race on shared memory, values"},
                                         {"wrong_half", 32, 1, "race on shared memory, values"},
                                         {"overwrite_while_read", 128, 1, "write-after-read race on shared memory, value"},
                                         {"shuffle_as_barrier", 32, 1, "race on shared memory, values"},
                                         {"count_without_atomic", 64, 1, "race on device memory"},
                                         {"count_without_atomic", 1, 4, "race on device memory"},
                                         {"blocks_overlap", 32, 4, "write-write race on device memory"},
                                         {"copy_without_wait", 32, 1, "race on shared memory, to"}}) {
    INFO(c.kernel);
    const std::string failure = failure_of(c.kernel, c.threads, c.blocks);
    if (emulator::kFindsRaces) CHECK(has(failure, c.kind));
    else CHECK(failure.empty());
  }
}

TEST_CASE("emulator: no race is seen where there is none") {
  for (const char* kernel : {"reverse", "half_a_warp", "all_read", "count", "copies", "votes"}) {
    INFO(kernel);
    CHECK(failure_of(kernel, 32).empty());
  }
  CHECK(failure_of("block_sum", 256, 6).empty());
  CHECK(failure_of("count", 64, 8).empty());
}

TEST_CASE("emulator: what would hang or be undefined on a GPU is an error that says where") {
  CHECK(has(failure_of("two_barriers", 32), "different __syncthreads: emulator_kernels.cu:"));
  CHECK(has(failure_of("lanes_gone", 32), "hangs"));
  CHECK(has(failure_of("lanes_gone", 32), "16 of 32 threads have ended"));
  CHECK(has(failure_of("not_in_mask", 32), "leaves out the calling lane"));
  CHECK(has(failure_of("copy_at_exit", 32), "cp.async is still under way"));
  CHECK(has(failure_of("matrix_outside", 32, 1, 512), "outside of the block's shared memory"));
}

TEST_CASE("emulator: what a driver refuses is refused") {
  CHECK(has(failure_of("reverse", 1025), "invalid configuration"));
  CHECK(has(failure_of("reverse", 32, 1, 300 << 10), "invalid argument"));
}

TEST_CASE("emulator: AddressSanitizer sees accesses beside shared arrays") {
  if (!emulator::kFindsOutOfBounds) return;
  CHECK(has(last_words([] { run_kernel("beyond_static", 32); }), "out of bounds for type 'float [32]'"));  // UBSan is first
  CHECK(has(last_words([] { run_kernel("beyond_dynamic", 32, 1, 128); }), "AddressSanitizer"));
  CHECK(last_words([] { run_kernel("beyond_dynamic", 31, 1, 128); }).empty());
}

TEST_CASE("emulator: a kernel that never ends is ended with its name") {
  const std::string words = last_words([] {
    emulator::options().timeout_seconds = 1;
    run_kernel("spin", 1);
  });
  CHECK(has(words, "spin has run for 1 s"));
}

TEST_CASE("emulator: in strict mode a host that follows a device address is told so") {
  if (emulator::options().is_strict) {
    CHECK(has(last_words([] { follow_device_address(); }), "the host followed an address of device memory"));
  } else {
    CHECK(follow_device_address() == 0);
  }
}

}  // namespace refrain::emulator_test
