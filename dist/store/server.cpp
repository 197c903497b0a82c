#include <refrain/dist/net/no_signals.h>
#include <refrain/dist/store/obituary.h>
#include <refrain/dist/store/server.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>

namespace refrain::detail {

namespace {

using std::chrono::milliseconds;

constexpr std::ptrdiff_t kMostStrangers = 64;
constexpr std::size_t kReadAtOnce = 1 << 20;
// What a stranger has to show the token: where others wait, and where nobody does.
constexpr milliseconds kLeastStrangerTime{200}, kStrangerTime{5000}, kTick{100};

constexpr auto is_stranger = [](const auto& connection) { return connection.rank < 0 && !connection.is_gone; };

}  // namespace

std::string client_proof_text(std::string_view server_nonce, std::string_view hello_without_proof) {
  return concat("refrain client", server_nonce, hello_without_proof);
}
std::string server_proof_text(std::string_view server_nonce, std::string_view client_nonce, std::string_view host) {
  return concat("refrain server", server_nonce, client_nonce, host);
}
milliseconds beat_interval(const GroupOptions& options) {
  return std::clamp(options.heartbeat_timeout / 10, milliseconds(20), milliseconds(1000));
}

StoreServer::StoreServer(Socket listener, int world_size, std::string token, const GroupOptions& options)
    : listener_(std::move(listener)),
      world_size_(world_size),
      token_(std::move(token)),
      options_(options),
      members_(std::size_t(world_size)) {
  int ends[2];
  check<RendezvousError>(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "cannot make a pipe");
  wake_read_ = Socket(ends[0]);
  wake_write_ = Socket(ends[1]);
  thread_ = thread_without_signals([this] { run(); });
}

StoreServer::~StoreServer() {
  wake_write_.close();  // the thread sees it
  thread_.join();
}

void StoreServer::run() {
  for (Clock::time_point last = Clock::now();;) {
    std::vector<pollfd> waiting{{wake_read_.fd(), POLLIN, 0}, {listener_.fd(), short(has_room() ? POLLIN : 0), 0}};
    for (const Connection& c : connections_)
      waiting.push_back({c.socket.fd(), short(c.out.empty() ? POLLIN : POLLIN | POLLOUT), 0});
    poll(waiting.data(), waiting.size(), int(std::min(kTick, beat_interval(options_)).count()));
    const Clock::time_point now = Clock::now();
    // This process itself stood still: nobody else is to blame for the silence.
    if (now - last > milliseconds(2000))
      for (Connection& c : connections_) c.heard += now - last;
    last = now;
    const bool is_stopping = waiting[0].revents != 0;  // what has come by then still counts: a last word of this process, say

    std::size_t i = 2;
    for (Connection& c : connections_) {
      const short events = waiting[i++].revents;
      if (is_stopping || (events & (POLLIN | POLLHUP | POLLERR)) != 0) receive(c);
      if (!c.is_gone && !c.out.empty()) flush(c);
    }
    if (is_stopping) break;
    if ((waiting[1].revents & POLLIN) != 0) accept_strangers();
    watch(now);
    for (Connection& c : connections_) {
      if (c.is_closing && c.out.empty()) c.is_gone = true;
      if (c.is_gone && c.rank >= 0 && members_[std::size_t(c.rank)].connection == &c)
        members_[std::size_t(c.rank)].connection = nullptr;
    }
    connections_.remove_if([](const Connection& c) { return c.is_gone; });
  }
  for (Connection& c : connections_)
    if (c.rank >= 0) flush(c);
}

bool StoreServer::has_room() const {
  if (std::count_if(connections_.begin(), connections_.end(), is_stranger) < kMostStrangers) return true;
  const auto oldest = std::find_if(connections_.begin(), connections_.end(), is_stranger);
  return Clock::now() - oldest->since > kLeastStrangerTime;
}

void StoreServer::accept_strangers() {
  while (has_room()) {
    Socket socket = accept_from(listener_);
    if (!socket.is_open()) return;
    // Strangers that say nothing make room for others: the one that has waited longest goes.
    if (std::count_if(connections_.begin(), connections_.end(), is_stranger) >= kMostStrangers)
      connections_.erase(std::find_if(connections_.begin(), connections_.end(), is_stranger));
    Connection& c = connections_.emplace_back();
    c.socket = std::move(socket);
    c.since = c.heard = Clock::now();
    c.nonce = random_bytes(kNonceBytes);
    send(c, FrameType::challenge, c.nonce);
  }
}

void StoreServer::receive(Connection& connection) {
  std::string bytes, problem;
  const bool is_open = receive_some(connection.socket, bytes, connection.rank < 0 ? 2 * kStrangerLimit : kReadAtOnce, problem);
  try {
    if (!bytes.empty()) connection.heard = Clock::now();
    connection.reader.add(bytes);
    while (!connection.is_closing) {
      const std::optional<Frame> frame = connection.reader.next();
      if (!frame) break;
      take(connection, *frame);
    }
  } catch (const DataError& error) {
    return lost(connection, concat("sent nonsense: ", error.what()));
  }
  if (!is_open) lost(connection, problem.empty() ? "its process ended" : "its connection broke: " + problem);
}

void StoreServer::lost(Connection& connection, const std::string& why) {
  connection.is_gone = true;
  if (connection.rank < 0) return;
  Member& member = members_[std::size_t(connection.rank)];
  member.connection = nullptr;
  if (!member.has_left) judge(connection.rank, why);
}

void StoreServer::flush(Connection& connection) {
  while (!connection.out.empty()) {
    const std::string_view left = std::string_view(*connection.out.front()).substr(connection.out_begin);
    const long sent = send_some(connection.socket, left);
    if (sent < 0) return;  // reading will tell why
    connection.out_begin += std::size_t(sent);
    if (std::size_t(sent) < left.size()) return;
    connection.out.pop_front();
    connection.out_begin = 0;
  }
}

void StoreServer::send(Connection& connection, FrameType type, std::string_view payload) {
  connection.out.push_back(std::make_shared<const std::string>(encode(type, payload)));
  flush(connection);
}

void StoreServer::send_all(FrameType type, std::string_view payload) {
  const auto bytes = std::make_shared<const std::string>(encode(type, payload));
  for (Connection& c : connections_) {
    if (c.rank < 0 || c.is_gone) continue;
    // One who does not read gets no more beats: they would only pile up.
    if (type == FrameType::beat && !c.out.empty()) continue;
    c.out.push_back(bytes);
    flush(c);
  }
}

void StoreServer::refuse(Connection& connection, const std::string& why) {
  send(connection, FrameType::refusal, PayloadWriter().text(why).bytes());
  connection.is_closing = true;
}

void StoreServer::take(Connection& connection, const Frame& frame) {
  if (connection.rank < 0) {
    if (frame.type == FrameType::obituary) return take_obituary(connection, frame.payload);
    check<DataError>(frame.type == FrameType::hello, "a stranger spoke");
    return take_hello(connection, frame.payload);
  }
  Member& member = members_[std::size_t(connection.rank)];
  PayloadReader reader(frame.payload);
  switch (frame.type) {
    case FrameType::beat: {
      member.step = reader.number();
      member.num_calls = reader.number();
      member.call = reader.text(kTextLimit);
      return reader.done();
    }
    case FrameType::exchange:
      check<DataError>(!member.part, "two parts of one exchange");
      member.part = reader.text(kPartLimit);
      reader.done();
      return finish_exchange();
    case FrameType::suspicion: {
      const int suspect = int(reader.number_in(0, world_size_ - 1));
      const std::string text = reader.text(kTextLimit);
      if (members_[std::size_t(suspect)].has_left) return judge(suspect, "it has left the group");
      return judge(suspect, concat(who(connection.rank), " lost its connection to it: ", text));
    }
    case FrameType::overdue: return take_overdue(connection.rank, reader.text(kTextLimit));
    case FrameType::abort: return judge(connection.rank, concat("it ended the group: ", reader.text(kTextLimit)));
    case FrameType::bye:
      if (!std::exchange(member.has_left, true) && ++num_left_ == world_size_) send_all(FrameType::all_left, {});
      return;
    default: fail<DataError>("a frame that members do not send");
  }
}

void StoreServer::take_hello(Connection& connection, const std::string& payload) {
  check<DataError>(payload.size() > 32, "frame ends early");
  const std::string_view body = std::string_view(payload).substr(0, payload.size() - 32),
                         proof = std::string_view(payload).substr(body.size());
  if (!is_equal_in_constant_time(hmac_sha256(token_, client_proof_text(connection.nonce, body)), proof))
    return refuse(connection, "the tokens differ (REFRAIN_TOKEN must be the same on all ranks)");
  PayloadReader reader(body);
  const std::string nonce = reader.text(kNonceBytes);
  const std::int64_t rank = reader.number(), world_size = reader.number(), pid = reader.number();
  std::string host = reader.text(256);
  reader.done();
  if (world_size != world_size_) return refuse(connection, concat("this world has ", world_size_, " ranks, not ", world_size));
  if (rank < 0 || rank >= world_size_)
    return refuse(connection, concat("there is no rank ", rank, " in a world of ", world_size_));
  Member& member = members_[std::size_t(rank)];
  if (member.has_come) return refuse(connection, concat("rank ", rank, " is taken by process ", member.pid, " on ", member.host));
  const Digest own = hmac_sha256(token_, server_proof_text(connection.nonce, nonce, host_));
  member = {.connection = &connection, .has_come = true, .host = std::move(host), .pid = pid};
  ++num_come_;
  connection.rank = int(rank);
  connection.reader.set_limit(kPartLimit + 64);
  send(connection, FrameType::welcome,
       PayloadWriter().text(host_).text({reinterpret_cast<const char*>(own.data()), own.size()}).bytes());
  if (!verdict_.empty()) send(connection, FrameType::verdict, verdict_);  // it came too late
}

void StoreServer::take_obituary(Connection& connection, const std::string& payload) {
  check<DataError>(payload.size() > 32, "frame ends early");
  const std::string_view body = std::string_view(payload).substr(0, payload.size() - 32),
                         proof = std::string_view(payload).substr(body.size());
  check<DataError>(is_equal_in_constant_time(hmac_sha256(token_, obituary_proof_text(connection.nonce, body)), proof),
                   "wrong token");
  PayloadReader reader(body);
  const int rank = int(reader.number_in(0, world_size_ - 1));
  std::string host = reader.text(256);
  const std::string why = reader.text(kTextLimit / 2);
  reader.done();
  connection.is_gone = true;
  Member& member = members_[std::size_t(rank)];
  if (member.has_left) return;
  if (member.host.empty()) member.host = std::move(host);
  judge(rank, why);
}

void StoreServer::finish_exchange() {
  PayloadWriter all;
  for (const Member& member : members_) {
    if (!member.part) return;
    all.text(*member.part);
  }
  for (Member& member : members_) member.part.reset();
  send_all(FrameType::exchanged, all.bytes());
}

void StoreServer::take_overdue(int rank, const std::string& text) {
  // The rank that has made the fewest calls is the one the others wait for.
  int slowest = rank == 0 ? 1 : 0;
  for (int r = 0; r < world_size_; ++r)
    if (r != rank && members_[std::size_t(r)].num_calls < members_[std::size_t(slowest)].num_calls) slowest = r;
  const Member& member = members_[std::size_t(slowest)];
  if (member.has_left) return judge(slowest, "it has left the group");
  judge(slowest, concat("it has made ", member.num_calls, " calls, the last ", member.call.empty() ? "none" : member.call,
                        " in step ", member.step, ", while ", who(rank), " ", text));
}

void StoreServer::watch(Clock::time_point now) {
  for (Connection& c : connections_) {
    if (c.is_gone) continue;
    if (c.rank < 0) {
      if (now - c.since > kStrangerTime) c.is_gone = true;
    } else if (now - c.heard > options_.heartbeat_timeout && !members_[std::size_t(c.rank)].has_left) {
      judge(c.rank, concat("it has not been heard of for ", double(options_.heartbeat_timeout.count()) / 1000, " s"));
    }
  }
  if (now - last_beat_ >= beat_interval(options_)) {
    last_beat_ = now;
    send_all(FrameType::beat, {});
  }
  if (num_come_ < world_size_ && now - start_ > options_.rendezvous_timeout) {
    std::string missing;
    int first = -1;
    for (int r = 0; r < world_size_; ++r) {
      if (members_[std::size_t(r)].has_come) continue;
      if (first < 0) first = r;
      missing += concat(missing.empty() ? "" : ", ", r);
    }
    judge(first, concat("of ", world_size_, " ranks these did not come within ",
                        double(options_.rendezvous_timeout.count()) / 1000, " s: ", missing));
  }
}

std::string StoreServer::who(int rank) const {
  const Member& member = members_[std::size_t(rank)];
  return concat("rank ", rank, " (", member.host.empty() ? "unknown host" : member.host, ")");
}

void StoreServer::judge(int rank, const std::string& why) {
  if (!verdict_.empty()) return;
  const std::string& host = members_[std::size_t(rank)].host;
  verdict_ = PayloadWriter().number(rank).text(host.empty() ? "unknown host" : host).text(why.substr(0, kTextLimit)).bytes();
  send_all(FrameType::verdict, verdict_);
}

}  // namespace refrain::detail
