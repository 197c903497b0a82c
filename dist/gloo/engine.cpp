#ifdef REFRAIN_HAS_GLOO

#include <refrain/dist/gloo/collectives.h>
#include <refrain/dist/gloo/engine.h>
#include <refrain/dist/net/no_signals.h>

#include <sys/socket.h>

#include <array>
#include <cstring>

namespace refrain::detail {

namespace {

using std::chrono::milliseconds;

// How long a broken connection waits for the store's word on who is to blame, which comes in milliseconds where a process ended.
constexpr milliseconds kVerdictTime{1000};
constexpr milliseconds kLeaveTime{5000}, kMismatchTime{1000};
constexpr std::string_view kEnded = "the process group has ended";

// FNV-1a.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ std::uint8_t(c)) * 1099511628211u;
  return hash;
}

// What must be the same on all ranks.
std::string signature(const Call& call) {
  std::string text = call.text();
  for (const std::int64_t count : call.counts) text += concat(",", count);
  return text;
}

// Gloo matches messages by slot. With the call's hash in it, calls that differ never meet: they end overdue, not in each other's
// memory. The low byte is the collective's own.
std::uint64_t collective_slot(const Call& call, std::uint64_t number) {
  return (number & 0xfffff) << 40 | (hash_of(signature(call)) & 0xffffffff) << 8;
}
std::uint64_t message_slot(const Call& call) {
  return std::uint64_t(2) << 60 | std::uint64_t(std::uint32_t(call.tag)) << 28 |
         (hash_of(concat(call.in.numel(), call.dtype())) & 0xfffffff);
}
constexpr std::uint64_t kCompareSlot = std::uint64_t(1) << 60;

// Rank 0's listening socket: the launcher's, or one of its own.
Socket store_listener(const Place& place) {
  int is_listening = 0;
  socklen_t length = sizeof is_listening;
  if (place.store_fd >= 0 && getsockopt(place.store_fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &length) == 0 &&
      is_listening != 0) {
    Socket socket(place.store_fd);
    if (port_of(socket) == place.master_port) return socket;
    socket.release();
  }
  return listen_on(place.master_addr, place.master_port);
}

}  // namespace

Engine::Engine(const Place& place, const GroupOptions& options) : place_(place), options_(options), host_(host_name()) {
  check<RendezvousError>(!place.token.empty() || is_loopback(place.master_addr), "REFRAIN_TOKEN is not set: on ",
                         place.master_addr, ", which other machines reach, the ranks must share a secret");
  if (place.rank == 0) server_ = std::make_unique<StoreServer>(store_listener(place), place.world_size, place.token, options);
  store_ = std::make_unique<StoreMember>(place, options);
  mesh_ = std::make_unique<Mesh>(*store_, place.rank, place.world_size, options);
  worker_ = thread_without_signals([this] { run(); });
  store_->on_verdict([this] { mesh_->close(); });
}

Engine::~Engine() { stop(false); }

std::shared_ptr<Engine::Operation> Engine::issue(Call call) {
  check(store_ != nullptr, kEnded);
  const bool is_collective = call.kind != CallKind::send && call.kind != CallKind::receive;
  std::shared_ptr<Operation> operation;
  std::int64_t num_calls = 0;
  {
    const std::lock_guard lock(mutex_);
    if (is_collective) ++num_collectives_;
    num_calls = std::int64_t(num_collectives_);
    const bool is_checked = is_collective && (options_.check_every_call || step_ == first_step_);
    operation.reset(new Operation{.call = std::move(call), .step = step_, .number = num_collectives_, .is_checked = is_checked});
  }
  const std::string name = operation->call.text();
  if (const auto verdict = store_->verdict()) throw_lost(*verdict, name, operation->step);
  if (is_collective) store_->set_position(operation->step, num_calls, operation->call.text());
  const std::lock_guard lock(mutex_);
  if (!mismatch_.empty()) throw CallMismatch(mismatch_);
  queue_.push_back(operation);
  changed_.notify_all();
  return operation;
}

void Engine::wait(Operation& operation) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return operation.is_done; });
    if (operation.error) std::rethrow_exception(operation.error);
  }
  try {
    operation.transfer.wait();
  } catch (const TransferError& error) {
    explain(error, operation.call.text(), operation.step);
  }
}

bool Engine::is_done(const Operation& operation) const {
  const std::lock_guard lock(mutex_);
  // Gloo does not tell of a message without waiting for it.
  return operation.is_done &&
         (operation.error || (operation.call.kind != CallKind::send && operation.call.kind != CallKind::receive));
}

void Engine::run() {
  for (;;) {
    std::shared_ptr<Operation> operation;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !queue_.empty() || is_stopping_; });
      if (queue_.empty()) return;
      operation = std::move(queue_.front());
      queue_.pop_front();
    }
    std::exception_ptr error;
    try {
      do_operation(*operation);
    } catch (...) {
      error = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    operation->error = std::move(error);  // whoever waits is its only owner
    operation->is_done = true;
    changed_.notify_all();
    operation.reset();  // its scratch is freed where it is waited for
  }
}

void Engine::do_operation(Operation& operation) {
  const Call& call = operation.call;
  {
    const std::lock_guard lock(mutex_);
    if (!mismatch_.empty()) throw CallMismatch(mismatch_);
  }
  try {
    if (call.kind == CallKind::send || call.kind == CallKind::receive) {
      std::byte* bytes = call.in.address();
      const std::size_t count = std::size_t(call.in.bytes());
      operation.transfer = call.kind == CallKind::send ? mesh_->send(call.peer, message_slot(call), bytes, count)
                                                       : mesh_->receive(call.peer, message_slot(call), bytes, count);
      return;
    }
    if (operation.is_checked) compare(operation);
    run_collective({*mesh_, place_.rank, place_.world_size, collective_slot(call, operation.number)}, call);
  } catch (const TransferError& error) {
    explain(error, operation.call.text(), operation.step);
  }
}

void Engine::compare(const Operation& operation) {
  constexpr std::size_t kText = 240;
  struct Header {
    std::uint64_t hash, number;
    std::array<char, kText> text;
  };
  const auto header = [&] {
    const std::string text = signature(operation.call);
    Header own{.hash = hash_of(text), .number = operation.number, .text = {}};
    const std::string shown = operation.call.text();
    std::memcpy(own.text.data(), shown.data(), std::min(shown.size(), kText - 1));
    return own;
  }();
  std::vector<Header> headers(std::size_t(place_.world_size), header);
  std::vector<Transfer> transfers;
  for (int r = 0; r < place_.world_size; ++r)
    if (r != place_.rank) transfers.push_back(mesh_->receive(r, kCompareSlot, &headers[std::size_t(r)], sizeof(Header)));
  for (int r = 0; r < place_.world_size; ++r)
    if (r != place_.rank) transfers.push_back(mesh_->send(r, kCompareSlot, &header, sizeof(Header)));
  for (Transfer& transfer : transfers) transfer.wait();
  for (int r = 1; r < place_.world_size; ++r) {
    const Header &first = headers[0], &other = headers[std::size_t(r)];
    if (first.hash == other.hash && first.number == other.number) continue;
    const auto named = [](int rank, const Header& of) {
      return concat("rank ", rank, "'s call ", of.number, " is ", std::string(of.text.data(), strnlen(of.text.data(), kText)));
    };
    const bool is_same_text = std::memcmp(first.text.data(), other.text.data(), kText) == 0 && first.number == other.number;
    const std::lock_guard lock(mutex_);
    mismatch_ =
        concat("the ranks' calls differ: ", named(0, first), ", ", named(r, other), is_same_text ? " in other pieces" : "", ", ",
               operation.step < 0 ? "before the first step" : concat("step ", operation.step));
    throw CallMismatch(mismatch_);
  }
}

void Engine::explain(const TransferError& error, const std::string& operation, std::int64_t step) {
  check(store_ != nullptr, kEnded);
  const bool is_first = !store_->verdict();
  if (is_first && error.is_overdue)
    store_->report_overdue(
        concat("waits in ", operation, " of step ", step, " for ", double(options_.collective_timeout.count()) / 1000, " s"));
  // All survivors are to learn of it at once.
  mesh_->close();
  auto verdict = store_->wait_for_verdict(kVerdictTime);
  if (!verdict) {
    store_->suspect(error.peer, error.what());
    verdict = store_->wait_for_verdict(kVerdictTime);
  }
  if (!verdict) verdict = Verdict{error.peer, "unknown host", error.what()};
  throw_lost(*verdict, operation, step);
}

void Engine::throw_lost(const Verdict& verdict, const std::string& operation, std::int64_t step) const {
  RankLost lost(concat("rank ", verdict.rank, " (", verdict.host, ") is lost: ", verdict.why, "; rank ", place_.rank, " (", host_,
                       ") was in ", operation, step < 0 ? ", before the first step" : concat(", step ", step)));
  lost.rank = verdict.rank;
  lost.host = verdict.host;
  lost.step = step;
  lost.operation = operation;
  throw lost;
}

void Engine::abort(std::string_view reason) {
  if (store_ == nullptr) return;
  if (!store_->verdict()) {
    store_->abort(reason);
    store_->wait_for_verdict(kVerdictTime);
  }
  mesh_->close();
}

void Engine::set_step(std::int64_t step) {
  check(store_ != nullptr, kEnded);
  std::int64_t num_calls = 0;
  {
    const std::lock_guard lock(mutex_);
    step_ = step;
    if (first_step_ < 0) first_step_ = step;
    num_calls = std::int64_t(num_collectives_);
    if (!mismatch_.empty()) throw CallMismatch(mismatch_);
  }
  if (const auto verdict = store_->verdict()) throw_lost(*verdict, "no operation", step);
  store_->set_position(step, num_calls, "none in this step");
}

void Engine::stop(bool is_well) {
  std::string mismatch;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_stopped_, true)) return;
    mismatch = mismatch_;
    is_well = is_well && queue_.empty();
  }
  // Where calls differ every rank sees it by itself, if it is given the time to.
  if (!store_->verdict()) {
    if (!mismatch.empty()) {
      if (!store_->leave(kMismatchTime)) abort(mismatch);
    } else if (is_well) {
      store_->leave(kLeaveTime);
    } else {
      abort("it left by an exception");
    }
  }
  store_->on_verdict({});
  mesh_->close();
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  worker_.join();
  store_.reset();
  server_.reset();
}

}  // namespace refrain::detail

#endif  // REFRAIN_HAS_GLOO
