// A thread that writes to broken connections on behalf of the program: no signal comes of it, then or later.
#include <refrain/dist/net/no_signals.h>
#include <refrain/tests/support/catch.h>

#include <unistd.h>

#include <cerrno>

namespace refrain {

namespace {

int num_signals = 0;

// Whether writing to a pipe that nobody reads fails as it should.
bool is_write_an_error() {
  int ends[2];
  if (pipe(ends) != 0) return false;
  close(ends[0]);
  const bool is_error = write(ends[1], "x", 1) < 0 && errno == EPIPE;
  close(ends[1]);
  return is_error;
}

}  // namespace

TEST_CASE("writing to a broken connection is an error and no signal, and the program's own handling of it stays") {
  const auto old = std::signal(SIGPIPE, [](int) { ++num_signals; });
  {
    const detail::NoBrokenPipe outer;
    {
      const detail::NoBrokenPipe inner;
      CHECK(is_write_an_error());
    }
    CHECK(is_write_an_error());
  }
  CHECK(num_signals == 0);
  CHECK(is_write_an_error());
  CHECK(num_signals == 1);
  std::signal(SIGPIPE, old);
}

}  // namespace refrain
