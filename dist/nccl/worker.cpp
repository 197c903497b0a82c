// The worker of a group on NCCL: what it puts on the stream, when it looks, and what it makes of failures.
#include <refrain/dist/nccl/collectives.h>
#include <refrain/dist/nccl/engine.h>

#include <algorithm>
#include <cstring>

namespace refrain::detail {

namespace {

using std::chrono::microseconds;

// Between two looks at the stream: a collective of an ordinary bucket takes longer.
constexpr microseconds kPause{50};
// Within it what was aborted has ended, or the device hangs and nothing more can be done for its memory.
constexpr std::chrono::seconds kAbortTime{10};

std::uint64_t collective_hash(const Call& call, std::uint64_t number) { return hash_of(concat(signature(call), " ", number)); }
std::uint64_t message_hash(const Call& call) { return hash_of(concat(call.tag, " ", call.in.numel(), " ", call.dtype())); }

}  // namespace

void NcclEngine::run() {
  std::exception_ptr error;
  try {
    link_->attach();
  } catch (...) {
    error = std::current_exception();
  }
  for (;;) {
    Batch batch;
    {
      std::unique_lock lock(mutex_);
      if (queue_.empty() && in_flight_.empty()) {
        changed_.wait(lock, [&] { return !queue_.empty() || is_stopping_; });
        if (queue_.empty()) return;
      } else if (queue_.empty()) {
        changed_.wait_for(lock, kPause);
      }
      if (!queue_.empty()) {
        batch = std::move(queue_.front());
        queue_.pop_front();
      }
    }
    if (!batch.empty()) {
      try {
        if (error) std::rethrow_exception(error);
        begin(batch);
      } catch (...) {
        const std::exception_ptr why = std::current_exception();
        // What was put on the stream before has the same end; a mismatch is nobody's but this call's.
        try {
          std::rethrow_exception(why);
        } catch (const CallMismatch&) {
        } catch (...) {
          break_up();
        }
        end(batch, why);
      }
    }
    batch.clear();
    look();
  }
}

void NcclEngine::begin(Batch batch) {
  world_->throw_mismatch();
  if (is_broken_ || connections_.is_closed) throw TransferError(-1, false, "the connection is closed");
  deadline_ = Clock::now() + world_->options().collective_timeout;
  for (const auto& operation : batch) link_->wait_for(*operation->ready);
  const Operation& first = *batch[0];
  if (first.split != nullptr) {
    first.split->link = link_->split(first.split->color, first.split->key, [this] { be_patient(); });
  } else if (first.is_message()) {
    begin_messages(batch);
  } else {
    begin_collective(*batch[0]);
  }
  in_flight_.push_back({std::move(batch), link_->mark(), Clock::now()});
}

std::int64_t NcclEngine::call_hashes(int slot) const {
  return std::int64_t(ranks_.size()) * (std::int64_t(sizeof(CallHeader)) + slot * kHashBytes);
}

std::int64_t NcclEngine::message_hash_at(int slot, bool is_incoming) const {
  return call_hashes(kNumCalls) + (2 * slot + (is_incoming ? 1 : 0)) * kHashBytes;
}

void NcclEngine::wait_for_slots(bool of_messages, std::int64_t limit) {
  const auto is_alike = [&](const InFlight& each) { return each.batch[0]->is_message() == of_messages; };
  while (std::count_if(in_flight_.begin(), in_flight_.end(), is_alike) >= limit) {
    be_patient();
    std::this_thread::sleep_for(kPause);
  }
}

// NCCL matches what is sent by its order alone: so that calls which differ are noticed, their hashes travel with them.
void NcclEngine::begin_collective(Operation& operation) {
  if (operation.is_checked) compare(operation);
  wait_for_slots(false, kNumCalls);
  operation.slot = int(operation.number % kNumCalls);
  const std::int64_t at = call_hashes(operation.slot);
  const std::uint64_t hash = collective_hash(operation.call, operation.number);
  std::memcpy(link_->headers().host + at + rank_ * kHashBytes, &hash, sizeof hash);
  const int size = int(ranks_.size());
  give_collective(*link_, rank_, size, operation.call, to_everybody(rank_, size, link_->headers().device + at, kHashBytes),
                  [this] { be_patient(); });
}

void NcclEngine::begin_messages(const Batch& batch) {
  wait_for_slots(true, 1);
  std::vector<NcclMessage> messages;
  for (std::size_t i = 0; i < batch.size(); ++i) {
    Operation& operation = *batch[i];
    const Call& call = operation.call;
    const bool is_send = call.kind == CallKind::send;
    operation.slot = int(i);
    const std::uint64_t hash = message_hash(call);
    if (is_send) std::memcpy(link_->headers().host + message_hash_at(operation.slot, false), &hash, sizeof hash);
    messages.push_back({call.peer, is_send, link_->headers().device + message_hash_at(operation.slot, !is_send), sizeof hash});
    messages.push_back({call.peer, is_send, call.in.address(), call.in.bytes()});
  }
  link_->exchange(messages, [this] { be_patient(); });
}

void NcclEngine::check_hashes(const Operation& operation) const {
  const auto hash_at = [&](std::int64_t offset) {
    std::uint64_t hash = 0;
    std::memcpy(&hash, link_->headers().host + offset, sizeof hash);
    return hash;
  };
  if (operation.split != nullptr || operation.call.kind == CallKind::send) return;
  if (operation.call.kind == CallKind::receive) {
    if (hash_at(message_hash_at(operation.slot, true)) != message_hash(operation.call))
      world_->end_by_mismatch(concat(operation.name, ": rank ", ranks_[std::size_t(operation.call.peer)],
                                     " has sent another message: of two ranks' messages that are not under way together, those sent "
                                     "first are to be received first"));
    return;
  }
  const std::uint64_t own = collective_hash(operation.call, operation.number);
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (int(r) != rank_ && hash_at(call_hashes(operation.slot) + std::int64_t(r) * kHashBytes) != own)
      world_->end_by_mismatch(concat("the ranks' calls differ: rank ", world_->rank(), "'s call ", operation.number, " is ", operation.name,
                                     ", rank ", ranks_[r], "'s another, step ", operation.step,
                                     "; with REFRAIN_CHECK_COLLECTIVES=1 it is named, and nothing is sent"));
}

void NcclEngine::compare(const Operation& operation) {
  const CallHeader own = header_of(operation.call, operation.number, operation.name);
  const NcclLink::Headers at = link_->headers();
  std::memcpy(at.host + std::size_t(rank_) * sizeof own, &own, sizeof own);
  link_->exchange(to_everybody(rank_, int(ranks_.size()), at.device, sizeof own), [this] { be_patient(); });
  const std::unique_ptr<NcclLink::Mark> mark = link_->mark();
  while (!mark->is_reached()) {
    be_patient();
    std::this_thread::sleep_for(kPause);
  }
  if (connections_.is_closed) throw TransferError(-1, false, "the connection is closed");
  std::vector<CallHeader> headers(ranks_.size(), own);
  std::memcpy(headers.data(), at.host, headers.size() * sizeof own);
  const std::string difference = difference_of(headers, ranks_, operation.step);
  if (!difference.empty()) world_->end_by_mismatch(difference);
}

void NcclEngine::be_patient() {
  if (connections_.is_closed) throw TransferError(-1, false, "the connection is closed");
  if (Clock::now() > deadline_) throw TransferError(-1, true, "it takes too long");
  look();  // others wait for what came before
  if (is_broken_) throw TransferError(-1, false, "the connection is closed");
}

void NcclEngine::look() {
  while (!in_flight_.empty()) {
    InFlight& oldest = in_flight_.front();
    std::exception_ptr error;
    try {
      const bool is_reached = !is_broken_ && oldest.mark->is_reached();
      if (is_broken_ || connections_.is_closed) throw TransferError(-1, false, "the connection is closed");
      if (!is_reached) {
        if (Clock::now() - oldest.since > world_->options().collective_timeout) throw TransferError(-1, true, "it takes too long");
        link_->check();
        return;
      }
      for (const auto& operation : oldest.batch) check_hashes(*operation);
    } catch (const CallMismatch&) {
      error = std::current_exception();
    } catch (...) {
      error = std::current_exception();
      break_up();
    }
    InFlight done = std::move(oldest);
    in_flight_.pop_front();
    if (!in_flight_.empty()) in_flight_.front().since = std::max(in_flight_.front().since, Clock::now());
    end(done.batch, error);
  }
}

void NcclEngine::break_up() noexcept {
  if (std::exchange(is_broken_, true)) return;
  link_->abort();
  try {
    const std::unique_ptr<NcclLink::Mark> last = link_->mark();
    for (const Clock::time_point start = Clock::now(); !last->is_reached() && Clock::now() - start < kAbortTime;)
      std::this_thread::sleep_for(kPause);
  } catch (const std::exception&) {  // the device has failed, and with it whatever it was doing
  }
}

std::exception_ptr NcclEngine::explained(const std::exception_ptr& error, const Operation& operation) {
  try {
    try {
      std::rethrow_exception(error);
    } catch (const TransferError& transfer) {
      world_->explain(transfer, operation.name, operation.step);
    } catch (const NcclError& nccl) {
      world_->explain(TransferError(-1, false, nccl.what()), operation.name, operation.step);
    } catch (const CallMismatch&) {
      throw;
    } catch (const std::exception& other) {
      world_->abort(other.what());
      throw;
    }
  } catch (...) {
    return std::current_exception();
  }
}

void NcclEngine::end(Batch& batch, const std::exception_ptr& error) {
  for (auto& operation : batch) {
    const std::exception_ptr why = error ? explained(error, *operation) : nullptr;
    const std::lock_guard lock(mutex_);
    operation->error = why;
    operation->is_done = true;
    --num_open_;
    changed_.notify_all();
    operation.reset();  // its scratch is freed where it is waited for
  }
}

}  // namespace refrain::detail
