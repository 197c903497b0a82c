#ifdef REFRAIN_HAS_GLOO

#include <refrain/dist/call_header.h>
#include <refrain/dist/gloo/collectives.h>
#include <refrain/dist/gloo/engine.h>
#include <refrain/dist/net/no_signals.h>

#include <algorithm>
#include <numeric>

namespace refrain::detail {

namespace {

// Gloo matches messages by slot, whose highest bits are of what kind it is and of which group. With the call's hash in it, calls
// that differ never meet: they end overdue, not in each other's memory. A collective's low byte is its own.
enum class SlotKind : std::uint64_t { collective, message, comparison };
constexpr int kGroupBits = 10;
std::uint64_t slot_of(SlotKind kind, std::int64_t group) { return std::uint64_t(kind) << 62 | std::uint64_t(group) << 52; }
std::uint64_t collective_slot(std::int64_t group, const Call& call, std::uint64_t number) {
  return slot_of(SlotKind::collective, group) | (number & 0xfff) << 40 | (hash_of(signature(call)) & 0xffffffff) << 8;
}
std::uint64_t message_slot(std::int64_t group, const Call& call) {
  return slot_of(SlotKind::message, group) | std::uint64_t(std::uint32_t(call.tag)) << 20 |
         (hash_of(concat(call.in.numel(), call.dtype())) & 0xfffff);
}

std::vector<int> all_of(int size) {
  std::vector<int> ranks(std::size_t(size), 0);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

Engine::Engine(std::shared_ptr<World> world) : Engine(world, all_of(world->size()), 0) {}

Engine::Engine(std::shared_ptr<World> world, std::vector<int> ranks, std::int64_t number)
    : world_(std::move(world)), mesh_(static_cast<Mesh&>(world_->connections())), ranks_(std::move(ranks)), number_(number) {
  check(number < 1 << kGroupBits, "split: a process has at most ", (1 << kGroupBits) - 1, " parts of one world");
  rank_ = int(std::find(ranks_.begin(), ranks_.end(), world_->rank()) - ranks_.begin());
  worker_ = thread_without_signals([this] { run(); });
}

Engine::~Engine() { stop(false); }

std::unique_ptr<Engine> Engine::part(std::span<const int> ranks, std::int64_t number) const {
  std::vector<int> of_world;
  for (const int r : ranks) of_world.push_back(ranks_[std::size_t(r)]);
  return std::make_unique<Engine>(world_, std::move(of_world), number);
}

std::shared_ptr<Engine::Operation> Engine::issue(Call call) {
  const bool is_collective = call.kind != CallKind::send && call.kind != CallKind::receive;
  const World::Position position = world_->position();
  world_->enter(name_of(call), position.step, is_collective);
  const std::lock_guard lock(mutex_);
  check(!is_stopped_, "the process group has ended");
  if (is_collective) ++num_collectives_;
  const auto operation = std::make_shared<Operation>(Operation{.call = std::move(call),
                                                               .step = position.step,
                                                               .number = num_collectives_,
                                                               .is_checked = is_collective && position.is_checked});
  queue_.push_back(operation);
  if (operation->call.kind != CallKind::barrier) changed_.notify_all();  // a barrier is waited for at once
  return operation;
}

void Engine::wait(Operation& operation) {
  {
    const NoBrokenPipe no_broken_pipe;
    std::unique_lock lock(mutex_);
    while (!operation.is_done) {
      changed_.wait(lock, [&] { return operation.is_done || (!is_busy_ && !queue_.empty()); });
      if (!operation.is_done) do_next(lock);
    }
    if (operation.error) std::rethrow_exception(operation.error);
  }
  try {
    operation.transfer.wait();
  } catch (const TransferError& error) {
    world_->explain(error, name_of(operation.call), operation.step);
  }
}

bool Engine::is_done(const Operation& operation) const {
  const std::lock_guard lock(mutex_);
  // Gloo does not tell of a message without waiting for it.
  return operation.is_done &&
         (operation.error || (operation.call.kind != CallKind::send && operation.call.kind != CallKind::receive));
}

void Engine::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return queue_.empty() ? is_stopping_ : !is_busy_; });
    if (queue_.empty()) return;
    do_next(lock);
  }
}

void Engine::do_next(std::unique_lock<std::mutex>& lock) {
  std::shared_ptr<Operation> operation = std::move(queue_.front());
  queue_.pop_front();
  is_busy_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    do_operation(*operation);
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  is_busy_ = false;
  operation->error = std::move(error);  // whoever waits is its only owner
  operation->is_done = true;
  operation.reset();  // its scratch is freed where it is waited for
  changed_.notify_all();
}

void Engine::do_operation(Operation& operation) {
  const Call& call = operation.call;
  world_->throw_mismatch();
  try {
    if (call.kind == CallKind::send || call.kind == CallKind::receive) {
      std::byte* bytes = call.in.address();
      const std::size_t count = std::size_t(call.in.bytes());
      const int peer = ranks_[std::size_t(call.peer)];
      const std::uint64_t slot = message_slot(number_, call);
      operation.transfer = call.kind == CallKind::send ? mesh_.send(peer, slot, bytes, count)
                                                       : mesh_.receive(peer, slot, bytes, count);
      return;
    }
    if (operation.is_checked) compare(operation);
    run_collective({mesh_, ranks_, rank_, collective_slot(number_, call, operation.number)}, call);
  } catch (const TransferError& error) {
    world_->explain(error, name_of(call), operation.step);
  }
}

void Engine::compare(const Operation& operation) {
  const CallHeader own = header_of(operation.call, operation.number, name_of(operation.call));
  std::vector<CallHeader> headers(ranks_.size(), own);
  std::vector<Transfer> transfers;
  const std::uint64_t slot = slot_of(SlotKind::comparison, number_);
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (int(r) != rank_) transfers.push_back(mesh_.receive(ranks_[r], slot, &headers[r], sizeof(CallHeader)));
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    if (int(r) != rank_) transfers.push_back(mesh_.send(ranks_[r], slot, &own, sizeof(CallHeader)));
  for (Transfer& transfer : transfers) transfer.wait();
  const std::string difference = difference_of(headers, ranks_, operation.step);
  if (!difference.empty()) world_->end_by_mismatch(difference);
}

void Engine::stop(bool is_well) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_stopped_, true)) return;
    is_well = is_well && queue_.empty();
  }
  if (!is_part())
    world_->leave(is_well);
  else if (!is_well)
    world_->abort("it left by an exception");
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
    changed_.notify_all();
  }
  worker_.join();
}

}  // namespace refrain::detail

#endif  // REFRAIN_HAS_GLOO
