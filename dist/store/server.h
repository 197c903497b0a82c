// Rank 0's store: admits who holds the token, passes the ranks' parts of an exchange on to all, and watches who is alive.
// A thread of its own keeps it. What strangers send is bounded and disturbs nobody.
#pragma once

#include <refrain/dist/join_group.h>
#include <refrain/dist/net/frame.h>
#include <refrain/dist/net/secret.h>
#include <refrain/dist/net/socket.h>

#include <atomic>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace refrain::detail {

inline constexpr std::size_t kStrangerLimit = 1024, kTextLimit = 1024, kPartLimit = 1 << 18;

class StoreServer {
 public:
  // Takes a socket that listens.
  StoreServer(Socket listener, int world_size, std::string token, const GroupOptions& options);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

 private:
  struct Connection {
    Socket socket;
    FrameReader reader{kStrangerLimit};
    std::string nonce = {};
    Clock::time_point since = {}, heard = {};
    std::deque<std::shared_ptr<const std::string>> out = {};
    std::size_t out_begin = 0;  // what of out.front() is sent already
    int rank = -1;              // -1: a stranger
    bool is_closing = false;    // once `out` is sent
    bool is_gone = false;
  };
  struct Member {
    Connection* connection = nullptr;  // null: not come yet, or gone
    bool has_come = false, has_left = false;
    std::string host = {};
    std::int64_t pid = 0, step = -1, num_calls = 0;
    std::string call = {};
    std::optional<std::string> part = {};  // of the exchange under way
  };

  void run();
  bool has_room() const;
  void accept_strangers();
  void receive(Connection& connection);
  void flush(Connection& connection);
  void take(Connection& connection, const Frame& frame);
  void take_hello(Connection& connection, const std::string& payload);
  void take_obituary(Connection& connection, const std::string& payload);
  void take_overdue(int rank, const std::string& text);
  void finish_exchange();
  void watch(Clock::time_point now);
  void lost(Connection& connection, const std::string& why);
  void refuse(Connection& connection, const std::string& why);
  void send(Connection& connection, FrameType type, std::string_view payload);
  void send_all(FrameType type, std::string_view payload);
  // The group is over; the first one counts.
  void judge(int rank, const std::string& why);
  std::string who(int rank) const;

  Socket listener_, wake_read_, wake_write_;
  const int world_size_;
  const std::string token_;
  const GroupOptions options_;
  const Clock::time_point start_ = Clock::now();
  const std::string host_ = host_name();
  std::list<Connection> connections_;
  std::vector<Member> members_;
  int num_come_ = 0, num_left_ = 0;
  Clock::time_point last_beat_ = {};
  std::string verdict_ = {};  // not empty: the group is over
  std::thread thread_;        // last: it uses what stands above
};

// What both ends sign.
std::string client_proof_text(std::string_view server_nonce, std::string_view hello_without_proof);
std::string server_proof_text(std::string_view server_nonce, std::string_view client_nonce, std::string_view host);
inline constexpr std::size_t kNonceBytes = 32;
// Between beats.
std::chrono::milliseconds beat_interval(const GroupOptions& options);

}  // namespace refrain::detail
