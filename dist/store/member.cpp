#include <refrain/dist/net/no_signals.h>
#include <refrain/dist/net/secret.h>
#include <refrain/dist/store/member.h>
#include <refrain/dist/store/server.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

namespace refrain::detail {

using std::chrono::milliseconds;

namespace {

constexpr std::size_t kMostReply = std::size_t(1) << 28;

}  // namespace

void throw_lost_while_forming(const Verdict& verdict) {
  RankLost error(concat("rank ", verdict.rank, " (", verdict.host, ") is lost: ", verdict.why, "; the group was being formed"));
  error.rank = verdict.rank;
  error.host = verdict.host;
  error.operation = "rendezvous";
  throw error;
}

StoreMember::StoreMember(const Place& place, const GroupOptions& options)
    : place_(place), options_(options), reader_(kTextLimit * 4) {
  const Clock::time_point deadline = Clock::now() + options.rendezvous_timeout;
  for (;;) {
    try {
      socket_ = connect_to(place.master_addr, place.master_port, deadline, !place.is_store_open);
    } catch (const RendezvousError& error) {
      if (!place.is_store_open) throw;
      throw_lost_while_forming({0, host_name(), error.what()});
    }
    local_address_ = detail::local_address(socket_);
    try {
      enter(place, deadline);
      break;
    } catch (const DataError&) {
      fail<RendezvousError>(place.master_addr, ":", place.master_port, " is not refrain's store");
    } catch (const Dropped&) {  // among many strangers: another try
      check<RendezvousError>(Clock::now() < deadline, place.master_addr, ":", place.master_port,
                             " closes the connection: is it refrain's store?");
      std::this_thread::sleep_for(milliseconds(50));
      reader_ = FrameReader(kTextLimit * 4);
      out_.clear();
    }
  }
  reader_.set_limit(kMostReply);
  int ends[2];
  check<RendezvousError>(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0, "cannot make a pipe");
  wake_read_ = Socket(ends[0]);
  wake_write_ = Socket(ends[1]);
  thread_ = thread_without_signals([this] { run(); });
}

StoreMember::~StoreMember() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  [[maybe_unused]] const ssize_t ignored = write(wake_write_.fd(), "", 1);
  thread_.join();
}

void StoreMember::enter(const Place& place, Clock::time_point deadline) {
  const std::string where = concat(place.master_addr, ":", place.master_port);
  const Frame challenge = read_frame(reader_, deadline);
  check<RendezvousError>(challenge.type == FrameType::challenge && challenge.payload.size() == kNonceBytes, where,
                         " is not refrain's store");
  const std::string nonce = random_bytes(kNonceBytes);
  std::string hello =
      PayloadWriter().text(nonce).number(place.rank).number(place.world_size).number(getpid()).text(host_name()).bytes();
  const Digest proof = hmac_sha256(place.token, client_proof_text(challenge.payload, hello));
  hello.append(reinterpret_cast<const char*>(proof.data()), proof.size());
  out_ = encode(FrameType::hello, hello);
  if (!flush()) throw Dropped{};
  const Frame answer = read_frame(reader_, deadline);
  if (answer.type == FrameType::refusal)
    fail<RendezvousError>("rank ", place.rank, " is refused by ", where, ": ", PayloadReader(answer.payload).text(kTextLimit));
  // Who does not hold the token is not rank 0, whatever answers on its port.
  std::string server_proof;
  if (answer.type == FrameType::welcome) {
    PayloadReader welcome(answer.payload);
    master_host_ = welcome.text(256);
    server_proof = welcome.text(32);
  }
  const Digest expected = hmac_sha256(place.token, server_proof_text(challenge.payload, nonce, master_host_));
  check<RendezvousError>(is_equal_in_constant_time(expected, server_proof), where,
                         " does not hold the token (REFRAIN_TOKEN must be the same on all ranks)");
}

Frame StoreMember::read_frame(FrameReader& reader, Clock::time_point deadline) {
  const std::string where = concat(place_.master_addr, ":", place_.master_port);
  for (;;) {
    try {
      if (std::optional<Frame> frame = reader.next()) return *std::move(frame);
    } catch (const DataError&) {
      fail<RendezvousError>(where, " is not refrain's store");
    }
    std::string bytes, problem;
    check<RendezvousError>(wait_readable(socket_, deadline), where, " says nothing: is it refrain's store?");
    // One byte at a time would do as well: what follows these frames waits in the reader.
    const bool is_open = receive_some(socket_, bytes, 4096, problem);
    reader.add(bytes);
    if (!is_open && bytes.empty()) throw Dropped{};
  }
}

bool StoreMember::flush() {
  while (!out_.empty()) {
    const long sent = send_some(socket_, out_);
    if (sent < 0) return false;
    if (sent == 0) return true;
    out_.erase(0, std::size_t(sent));
  }
  return true;
}

void StoreMember::post(FrameType type, std::string_view payload) {
  {
    const std::lock_guard lock(mutex_);
    out_ += encode(type, payload);
  }
  [[maybe_unused]] const ssize_t ignored = write(wake_write_.fd(), "", 1);
}

void StoreMember::run() {
  const milliseconds interval = beat_interval(options_);
  Clock::time_point heard = Clock::now(), last = heard, last_beat = {};
  for (;;) {
    bool has_more = false;
    {
      std::unique_lock lock(mutex_);
      const Clock::time_point now = Clock::now();
      if (now - last_beat >= interval && out_.size() < (1 << 16)) {
        last_beat = now;
        out_ += encode(FrameType::beat, PayloadWriter().number(step_).number(num_calls_).text(call_).bytes());
      }
      flush();  // a broken connection shows in reading
      has_more = !out_.empty();
      if (is_stopping_) return;
    }
    pollfd waiting[]{{wake_read_.fd(), POLLIN, 0}, {socket_.fd(), short(has_more ? POLLIN | POLLOUT : POLLIN), 0}};
    poll(waiting, 2, int(interval.count()));
    const Clock::time_point now = Clock::now();
    if (now - last > milliseconds(2000)) heard += now - last;  // this process itself stood still
    last = now;
    if (waiting[0].revents != 0)
      for (char sink[64]; read(wake_read_.fd(), sink, sizeof sink) > 0;) continue;
    std::string bytes, problem;
    const bool is_open = receive_some(socket_, bytes, 1 << 20, problem);
    if (!bytes.empty()) heard = now;
    try {
      for (reader_.add(bytes);;) {
        const std::optional<Frame> frame = reader_.next();
        if (!frame) break;
        take(*frame);
      }
    } catch (const DataError& error) {
      end({0, master_host_, concat("its store sent nonsense: ", error.what())});
    }
    if (!is_open) {
      end({0, master_host_, problem.empty() ? "its process ended" : "its connection broke: " + problem});
      return;
    }
    if (now - heard > options_.heartbeat_timeout)
      end({0, master_host_, concat("it has not been heard of for ", double(options_.heartbeat_timeout.count()) / 1000, " s")});
  }
}

void StoreMember::take(const Frame& frame) {
  PayloadReader reader(frame.payload);
  switch (frame.type) {
    case FrameType::beat: return;
    case FrameType::exchanged: {
      std::vector<std::string> parts;
      for (int r = 0; r < place_.world_size; ++r) parts.push_back(reader.text(kPartLimit));
      reader.done();
      const std::lock_guard lock(mutex_);
      exchanged_ = std::move(parts);
      return changed_.notify_all();
    }
    case FrameType::verdict: {
      Verdict verdict{.rank = int(reader.number_in(0, place_.world_size - 1)), .host = {}, .why = {}};
      verdict.host = reader.text(256);
      verdict.why = reader.text(kTextLimit);
      return end(std::move(verdict));
    }
    case FrameType::all_left: {
      const std::lock_guard lock(mutex_);
      have_all_left_ = true;
      return changed_.notify_all();
    }
    default: fail<DataError>("a frame that the store does not send");
  }
}

void StoreMember::end(Verdict verdict) {
  std::function<void()> function;
  {
    const std::lock_guard lock(mutex_);
    if (verdict_ || have_all_left_) return;
    verdict_ = std::move(verdict);
    if (!is_leaving_) function = on_verdict_;
    changed_.notify_all();
  }
  if (function) function();
}

std::vector<std::string> StoreMember::exchange(std::string_view part) {
  check(part.size() <= kPartLimit, "exchange: ", part.size(), " bytes, at most ", kPartLimit, " are taken");
  {
    const std::lock_guard lock(mutex_);
    exchanged_.reset();
  }
  post(FrameType::exchange, PayloadWriter().text(part).bytes());
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return exchanged_ || verdict_; });
  if (exchanged_) return *std::exchange(exchanged_, {});
  throw_lost_while_forming(*verdict_);
}

void StoreMember::on_verdict(std::function<void()> function) {
  bool is_late = false;
  {
    const std::lock_guard lock(mutex_);
    is_late = verdict_.has_value();
    on_verdict_ = function;
  }
  if (is_late && function) function();
}

std::optional<Verdict> StoreMember::verdict() const {
  const std::lock_guard lock(mutex_);
  return verdict_;
}

std::optional<Verdict> StoreMember::wait_for_verdict(milliseconds time) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, time, [&] { return verdict_.has_value(); });
  return verdict_;
}

void StoreMember::set_position(std::int64_t step, std::int64_t num_calls, std::string call) {
  const std::lock_guard lock(mutex_);
  step_ = step;
  num_calls_ = num_calls;
  call_ = std::move(call);
}

void StoreMember::suspect(int rank, std::string_view why) {
  post(FrameType::suspicion, PayloadWriter().number(rank).text(why.substr(0, kTextLimit / 2)).bytes());
}
void StoreMember::report_overdue(std::string_view text) {
  post(FrameType::overdue, PayloadWriter().text(text.substr(0, kTextLimit / 2)).bytes());
}
void StoreMember::abort(std::string_view why) {
  post(FrameType::abort, PayloadWriter().text(why.substr(0, kTextLimit / 2)).bytes());
}

bool StoreMember::leave(milliseconds patience) {
  {
    const std::lock_guard lock(mutex_);
    is_leaving_ = true;
  }
  post(FrameType::bye, {});
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return have_all_left_ || verdict_; });
  return have_all_left_;
}

}  // namespace refrain::detail
