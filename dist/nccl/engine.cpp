// What a rank's own thread does with a group on NCCL: calls, waits, parts and the end. The worker's half is worker.cpp.
#include <refrain/dist/nccl/engine.h>
#include <refrain/dist/net/no_signals.h>

#include <algorithm>
#include <numeric>

namespace refrain::detail {

namespace {

std::vector<int> all_of(int size) {
  std::vector<int> ranks(std::size_t(size), 0);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

NcclEngine::NcclEngine(std::shared_ptr<World> world)
    : NcclEngine(world, std::move(static_cast<NcclConnections&>(world->connections()).link), all_of(world->size()), false) {}

NcclEngine::NcclEngine(std::shared_ptr<World> world, std::unique_ptr<NcclLink> link, std::vector<int> ranks, bool is_part)
    : world_(std::move(world)), connections_(static_cast<NcclConnections&>(world_->connections())), link_(std::move(link)),
      ranks_(std::move(ranks)), is_part_(is_part) {
  rank_ = int(std::find(ranks_.begin(), ranks_.end(), world_->rank()) - ranks_.begin());
  worker_ = thread_without_signals([this] { run(); });
}

NcclEngine::~NcclEngine() { stop(false); }

std::shared_ptr<NcclEngine::Operation> NcclEngine::make_operation(Call call, std::string name) {
  const World::Position position = world_->position();
  const bool is_collective = call.kind != CallKind::send && call.kind != CallKind::receive;
  auto operation = std::make_shared<Operation>(Operation{.call = std::move(call),
                                                         .name = std::move(name),
                                                         .step = position.step,
                                                         .number = 0,
                                                         .is_checked = is_collective && position.is_checked,
                                                         .ready = link_->device_mark()});
  world_->enter(operation->name, position.step, is_collective);
  return operation;
}

std::shared_ptr<NcclEngine::Operation> NcclEngine::issue(Call call) {
  std::string name = call.text(is_part_ ? std::span(ranks_) : std::span<const int>());
  const std::shared_ptr<Operation> operation = make_operation(std::move(call), std::move(name));
  const std::lock_guard lock(mutex_);
  check(!is_stopped_, "the process group has ended");
  ++num_open_;
  if (operation->is_message()) {
    posted_.push_back(operation);
  } else {
    operation->number = ++num_collectives_;
    queue_.push_back({operation});
    changed_.notify_all();
  }
  return operation;
}

std::unique_ptr<NcclEngine> NcclEngine::part(std::span<const int> ranks) {
  std::vector<int> of_world;
  for (const int r : ranks) of_world.push_back(ranks_[std::size_t(r)]);
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  Operation::Split split{.color = *std::min_element(ranks.begin(), ranks.end()), .key = int(own - ranks.begin()), .link = nullptr};
  const std::shared_ptr<Operation> operation = make_operation({.kind = CallKind::barrier}, "split");
  operation->is_checked = false;
  operation->split = &split;
  {
    const std::lock_guard lock(mutex_);
    ++num_open_;
    queue_.push_back({operation});
    changed_.notify_all();
  }
  wait(*operation);
  return std::make_unique<NcclEngine>(world_, std::move(split.link), std::move(of_world), true);
}

void NcclEngine::wait(Operation& operation) {
  std::unique_lock lock(mutex_);
  // Messages begin when one of them is waited for, all that there are side by side: ranks may then call them in any order.
  if (!posted_.empty() && operation.is_message() && !operation.is_done) {
    std::stable_sort(posted_.begin(), posted_.end(), [](const auto& a, const auto& b) { return a->call.tag < b->call.tag; });
    for (std::size_t i = 0; i < posted_.size(); i += kNumMessages)
      queue_.emplace_back(posted_.begin() + std::ptrdiff_t(i),
                          posted_.begin() + std::ptrdiff_t(std::min(posted_.size(), i + kNumMessages)));
    posted_.clear();
    changed_.notify_all();
  }
  changed_.wait(lock, [&] { return operation.is_done; });
  if (operation.error) std::rethrow_exception(operation.error);
}

bool NcclEngine::is_done(const Operation& operation) const {
  const std::lock_guard lock(mutex_);
  return operation.is_done;
}

void NcclEngine::stop(bool is_well) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(is_stopped_, true)) return;
    is_well = is_well && num_open_ == 0;
  }
  if (!is_part_)
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
