// TCP sockets: non-blocking, closed with their owner, never inherited by a program that is started.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>

namespace refrain::detail {

using Clock = std::chrono::steady_clock;

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() { close(); }
  void close();
  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_ = -1;
};

// Listens on the address of `host` alone; port 0 takes a free one. Throws RendezvousError: unresolvable, taken, not ours.
Socket listen_on(const std::string& host, int port);
int port_of(const Socket& socket);
// The address that this end of a connection has, as digits.
std::string local_address(const Socket& socket);

// Tries until somebody answers or the deadline has passed. Throws RendezvousError, at once where the host has no address or, for
// who is not patient, nobody listens.
Socket connect_to(const std::string& host, int port, Clock::time_point deadline, bool is_patient = true);
// Someone waiting on a listening socket; closed when there is nobody.
Socket accept_from(const Socket& listener);

// Sends what fits now; -1: the connection is broken.
long send_some(const Socket& socket, std::string_view bytes);
// Appends what is there to `bytes`, at most `most`. False: the other side has closed, or the connection is broken (`problem`).
bool receive_some(const Socket& socket, std::string& bytes, std::size_t most, std::string& problem);

// Waits until the socket can be read, or the deadline.
bool wait_readable(const Socket& socket, Clock::time_point deadline);

bool is_loopback(const std::string& host);
std::string host_name();

}  // namespace refrain::detail
