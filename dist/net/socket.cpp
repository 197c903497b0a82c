#include <refrain/dist/net/socket.h>
#include <refrain/dist/rank_lost.h>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

namespace refrain::detail {

namespace {

std::string problem_of(int number) { return std::generic_category().message(number); }

struct Addresses {
  explicit Addresses(const std::string& host, int port) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    const int code = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &first);
    check<RendezvousError>(code == 0, "host '", host,
                           "' (MASTER_ADDR) has no address: ", code == EAI_SYSTEM ? problem_of(errno) : gai_strerror(code));
  }
  ~Addresses() { freeaddrinfo(first); }
  Addresses(const Addresses&) = delete;
  Addresses& operator=(const Addresses&) = delete;
  addrinfo* first = nullptr;
};

Socket new_socket(const addrinfo& address) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, address.ai_protocol));
  const int one = 1;
  if (socket.is_open()) setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return socket;
}

int milliseconds_to(Clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return int(std::clamp<long long>(left + 1, 0, 1 << 30));
}

}  // namespace

void Socket::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Socket listen_on(const std::string& host, int port) {
  const Addresses addresses(host, port);
  int number = 0;
  for (const addrinfo* address = addresses.first; address != nullptr; address = address->ai_next) {
    Socket socket = new_socket(*address);
    const int one = 1;
    if (socket.is_open() && setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        bind(socket.fd(), address->ai_addr, address->ai_addrlen) == 0 && listen(socket.fd(), 1024) == 0)
      return socket;
    number = errno;
    if (number == EADDRINUSE) break;
  }
  if (number == EADDRINUSE) fail<RendezvousError>("port ", port, " on ", host, " is taken; choose another MASTER_PORT");
  fail<RendezvousError>("cannot listen on ", host, ":", port, ": ", problem_of(number));
}

int port_of(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::string local_address(const Socket& socket) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  std::array<char, NI_MAXHOST> text{};
  check<RendezvousError>(
      getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
          getnameinfo(reinterpret_cast<sockaddr*>(&address), length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0,
      "a connection without an address");
  return text.data();
}

Socket connect_to(const std::string& host, int port, Clock::time_point deadline, bool is_patient) {
  const Addresses addresses(host, port);
  int number = ETIMEDOUT;
  for (auto pause = std::chrono::milliseconds(5);; pause = std::min(pause * 2, std::chrono::milliseconds(200))) {
    for (const addrinfo* address = addresses.first; address != nullptr; address = address->ai_next) {
      Socket socket = new_socket(*address);
      if (!socket.is_open()) fail<RendezvousError>("cannot make a socket: ", problem_of(errno));
      if (connect(socket.fd(), address->ai_addr, address->ai_addrlen) == 0) return socket;
      number = errno;
      if (number != EINPROGRESS) continue;
      pollfd waiting{socket.fd(), POLLOUT, 0};
      socklen_t length = sizeof number;
      if (poll(&waiting, 1, std::min(milliseconds_to(deadline), 5000)) == 1 &&
          getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &number, &length) == 0 && number == 0)
        return socket;
      if (number == EINPROGRESS) number = ETIMEDOUT;
    }
    if (Clock::now() + pause > deadline || (!is_patient && number == ECONNREFUSED))
      fail<RendezvousError>("nobody answers at ", host, ":", port, " (", problem_of(number), "): is rank 0 running?");
    std::this_thread::sleep_for(pause);
  }
}

Socket accept_from(const Socket& listener) {
  Socket socket(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  const int one = 1;
  if (socket.is_open()) setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return socket;
}

long send_some(const Socket& socket, std::string_view bytes) {
  const ssize_t sent = send(socket.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (sent >= 0) return sent;
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -1;
}

bool receive_some(const Socket& socket, std::string& bytes, std::size_t most, std::string& problem) {
  std::array<char, 16384> buffer;
  for (std::size_t total = 0; total < most;) {
    const ssize_t got = recv(socket.fd(), buffer.data(), std::min(buffer.size(), most - total), 0);
    if (got > 0) {
      bytes.append(buffer.data(), std::size_t(got));
      total += std::size_t(got);
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
    // A process that dies with something unread resets the connection.
    problem = got == 0 || errno == ECONNRESET ? "" : problem_of(errno);
    return false;
  }
  return true;
}

bool wait_readable(const Socket& socket, Clock::time_point deadline) {
  pollfd waiting{socket.fd(), POLLIN, 0};
  return poll(&waiting, 1, milliseconds_to(deadline)) > 0;
}

bool is_loopback(const std::string& host) {
  const Addresses addresses(host, 0);
  for (const addrinfo* address = addresses.first; address != nullptr; address = address->ai_next) {
    const bool is_local = address->ai_family == AF_INET
                              ? (ntohl(reinterpret_cast<sockaddr_in*>(address->ai_addr)->sin_addr.s_addr) >> 24) == 127
                              : address->ai_family == AF_INET6 &&
                                    IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<sockaddr_in6*>(address->ai_addr)->sin6_addr);
    if (!is_local) return false;
  }
  return true;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "unknown host";
  return name.data();
}

}  // namespace refrain::detail
