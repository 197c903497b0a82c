#include <refrain/dist/world.h>

#include <sys/socket.h>

#include <utility>

namespace refrain::detail {

namespace {

using std::chrono::milliseconds;

// How long a broken connection waits for the store's word on who is to blame, which comes in milliseconds where a process ended.
constexpr milliseconds kVerdictTime{1000};
constexpr milliseconds kLeaveTime{5000}, kMismatchTime{1000};

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

World::World(const Place& place, const GroupOptions& options, const Connect& connect)
    : place_(place), options_(options), host_(host_name()) {
  check<RendezvousError>(!place.token.empty() || is_loopback(place.master_addr), "REFRAIN_TOKEN is not set: on ",
                         place.master_addr, ", which other machines reach, the ranks must share a secret");
  if (place.rank == 0) server_ = std::make_unique<StoreServer>(store_listener(place), place.world_size, place.token, options);
  store_ = std::make_unique<StoreMember>(place, options);
  connections_ = connect(*store_);
  store_->on_verdict([this] { connections_->close(); });
}

World::Position World::position() const {
  const std::lock_guard lock(mutex_);
  return {step_, options_.check_every_call || step_ == first_step_};
}

void World::check_not_left() const {
  const std::lock_guard lock(mutex_);
  check(!has_left_, "the process group has ended");
}

void World::throw_mismatch() const {
  const std::lock_guard lock(mutex_);
  if (!mismatch_.empty()) throw CallMismatch(mismatch_);
}

void World::end_by_mismatch(std::string text) {
  const std::lock_guard lock(mutex_);
  if (mismatch_.empty()) mismatch_ = std::move(text);
  throw CallMismatch(mismatch_);
}

void World::enter(const std::string& call, std::int64_t step, bool is_collective) {
  check_not_left();
  if (const auto verdict = store_->verdict()) throw_lost(*verdict, call, step);
  throw_mismatch();
  if (!is_collective) return;
  const std::lock_guard lock(mutex_);
  store_->set_position(step, ++num_collectives_, call);
}

void World::set_step(std::int64_t step) {
  check_not_left();
  throw_mismatch();
  if (const auto verdict = store_->verdict()) throw_lost(*verdict, "no operation", step);
  const std::lock_guard lock(mutex_);
  if (std::exchange(step_, step) == step) return;  // another group of this rank has said so
  if (first_step_ < 0) first_step_ = step;
  store_->set_position(step, num_collectives_, "none in this step");
}

void World::explain(const TransferError& error, const std::string& operation, std::int64_t step) {
  check_not_left();
  const bool is_first = !store_->verdict();
  if (is_first && error.is_overdue)
    store_->report_overdue(
        concat("waits in ", operation, " of step ", step, " for ", double(options_.collective_timeout.count()) / 1000, " s"));
  // All survivors are to learn of it at once.
  connections_->close();
  auto verdict = store_->wait_for_verdict(kVerdictTime);
  if (!verdict) {
    if (error.peer >= 0)
      store_->suspect(error.peer, error.what());
    else
      store_->abort(error.what());
    verdict = store_->wait_for_verdict(kVerdictTime);
  }
  if (!verdict) verdict = Verdict{error.peer >= 0 ? error.peer : place_.rank, error.peer >= 0 ? "unknown host" : host_, error.what()};
  throw_lost(*verdict, operation, step);
}

void World::throw_lost(const Verdict& verdict, const std::string& operation, std::int64_t step) const {
  RankLost lost(concat("rank ", verdict.rank, " (", verdict.host, ") is lost: ", verdict.why, "; rank ", place_.rank, " (", host_,
                       ") was in ", operation, step < 0 ? ", before the first step" : concat(", step ", step)));
  lost.rank = verdict.rank;
  lost.host = verdict.host;
  lost.step = step;
  lost.operation = operation;
  throw lost;
}

void World::abort(std::string_view reason) {
  {
    const std::lock_guard lock(mutex_);
    if (has_left_) return;
  }
  if (!store_->verdict()) {
    store_->abort(reason);
    store_->wait_for_verdict(kVerdictTime);
  }
  connections_->close();
}

void World::leave(bool is_well) {
  std::string mismatch;
  {
    const std::lock_guard lock(mutex_);
    if (has_left_) return;
    mismatch = mismatch_;
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
  {
    const std::lock_guard lock(mutex_);
    has_left_ = true;
  }
  connections_->close();
}

}  // namespace refrain::detail
