#include <refrain/tests/support/thread_group.h>

#include <refrain/core/half.h>
#include <refrain/dist/call.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>
#include <tuple>
#include <vector>

namespace refrain::testing {

namespace {

using detail::Call;
using detail::CallKind;
using Clock = std::chrono::steady_clock;

// One collective call of all ranks: the last one to come computes for everybody.
struct Meeting {
  std::vector<Call> calls;
  int num_come = 0, num_gone = 0;
  bool is_done = false;
  Clock::time_point end;  // of its transfer
};

// Number of the group, its first rank, number of the call.
using MeetingKey = std::tuple<std::int64_t, int, std::int64_t>;

struct World {
  explicit World(int num_ranks, ThreadWorldOptions world_options) : size(num_ranks), options(std::move(world_options)) {}
  int size;
  ThreadWorldOptions options;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<MeetingKey, std::shared_ptr<Meeting>> meetings;
  std::map<std::tuple<int, int, std::int64_t, int, std::int64_t>, std::vector<std::byte>> messages;  // from, to, group, tag, number
  std::vector<Clock::time_point> link_free = std::vector(std::size_t(size), Clock::now());  // of each rank
  std::string failure;
  int failed_rank = -1;
};

template <class T, class Sum>
void reduce_values(std::vector<Call>& calls, ReduceOp op, std::int64_t begin, std::int64_t end, T* out) {
  for (std::int64_t i = begin; i < end; ++i) {
    Sum total = Sum(reinterpret_cast<const T*>(calls[0].in.address())[i]);
    for (std::size_t r = 1; r < calls.size(); ++r) {
      const Sum value = Sum(reinterpret_cast<const T*>(calls[r].in.address())[i]);
      if (op == ReduceOp::max) total = value > total || value != value ? value : total;
      else total = Sum(total + value);
    }
    if (op == ReduceOp::mean) total = Sum(total / Sum(calls.size()));
    out[i - begin] = T(total);
  }
}

std::vector<std::byte> reduced(std::vector<Call>& calls) {
  const Call& call = calls[0];
  const std::int64_t numel = call.in.numel();
  std::vector<std::byte> out(std::size_t(call.in.bytes()));
  const auto as = [&](auto* p) { return reinterpret_cast<decltype(p)>(out.data()); };
  switch (call.dtype()) {
    case DType::f32: reduce_values<float, float>(calls, call.op, 0, numel, as(static_cast<float*>(nullptr))); break;
    case DType::f64: reduce_values<double, double>(calls, call.op, 0, numel, as(static_cast<double*>(nullptr))); break;
    case DType::i64: reduce_values<std::int64_t, std::int64_t>(calls, call.op, 0, numel, as(static_cast<std::int64_t*>(nullptr))); break;
    case DType::f16: reduce_values<f16, float>(calls, call.op, 0, numel, as(static_cast<f16*>(nullptr))); break;
    case DType::bf16: reduce_values<bf16, float>(calls, call.op, 0, numel, as(static_cast<bf16*>(nullptr))); break;
    default: fail<InternalError>("thread group: no reduction of ", call.dtype());
  }
  return out;
}

void write(const Tensor& to, const std::byte* from, std::int64_t offset, std::int64_t bytes) {
  if (bytes > 0) std::memmove(to.address() + offset, from, std::size_t(bytes));
}

void perform(std::vector<Call>& calls) {
  const Call& first = calls[0];
  for (const Call& call : calls) {
    check<CallMismatch>(call.text() == first.text(), "the ranks' calls differ: ", first.text(), " and ", call.text());
  }
  switch (first.kind) {
    case CallKind::all_reduce: {
      const std::vector<std::byte> out = reduced(calls);
      for (const Call& call : calls) write(call.out, out.data(), 0, std::int64_t(out.size()));
      break;
    }
    case CallKind::broadcast: {
      const Tensor& root = calls[std::size_t(first.peer)].in;
      const std::vector<std::byte> values(root.address(), root.address() + root.bytes());
      for (const Call& call : calls) write(call.out, values.data(), 0, std::int64_t(values.size()));
      break;
    }
    case CallKind::reduce_scatter: {
      const std::vector<std::byte> out = reduced(calls);
      const std::vector<std::int64_t> offsets = detail::offsets_of(first.counts);
      const std::int64_t size = std::int64_t(size_of(first.dtype()));
      for (std::size_t r = 0; r < calls.size(); ++r) write(calls[r].out, out.data() + offsets[r] * size, 0, first.counts[r] * size);
      break;
    }
    case CallKind::all_gather: {
      const std::vector<std::int64_t> offsets = detail::offsets_of(first.counts);
      const std::int64_t size = std::int64_t(size_of(first.dtype()));
      std::vector<std::vector<std::byte>> pieces;
      for (const Call& call : calls) pieces.emplace_back(call.in.address(), call.in.address() + call.in.bytes());
      for (const Call& call : calls)
        for (std::size_t r = 0; r < calls.size(); ++r) write(call.out, pieces[r].data(), offsets[r] * size, first.counts[r] * size);
      break;
    }
    default: break;
  }
}

class ThreadPending final : public detail::Pending {
 public:
  ThreadPending(std::shared_ptr<World> world, const MeetingKey& key, int num_ranks, Tensor scratch)
      : world_(std::move(world)), key_(key), num_ranks_(num_ranks), scratch_(std::move(scratch)) {}
  void wait() override {
    std::unique_lock lock(world_->mutex);
    const std::shared_ptr<Meeting> meeting = world_->meetings.at(key_);
    world_->changed.wait(lock, [&] { return meeting->is_done || !world_->failure.empty(); });
    if (!meeting->is_done) {
      RankLost lost(concat("rank ", world_->failed_rank, " is lost: ", world_->failure));
      lost.rank = world_->failed_rank;
      throw lost;
    }
    if (++meeting->num_gone == num_ranks_) world_->meetings.erase(key_);
    lock.unlock();
    std::this_thread::sleep_until(meeting->end);
    scratch_ = {};
  }
  bool is_done() const override {
    const std::lock_guard lock(world_->mutex);
    const auto found = world_->meetings.find(key_);
    return found == world_->meetings.end() || (found->second->is_done && Clock::now() >= found->second->end);
  }

 private:
  std::shared_ptr<World> world_;
  MeetingKey key_;
  int num_ranks_;
  Tensor scratch_;
};

class ThreadGroup final : public ProcessGroup {
 public:
  // Of the world's `ranks`.
  ThreadGroup(std::shared_ptr<World> world, const Device& device, int rank, std::vector<int> ranks, std::int64_t number)
      : ProcessGroup(device, rank, int(ranks.size())), world_(std::move(world)), ranks_(std::move(ranks)), number_(number) {}

  void abort(std::string_view reason) override {
    const std::lock_guard lock(world_->mutex);
    if (world_->failure.empty()) {
      world_->failure = reason;
      world_->failed_rank = of_world(rank());
    }
    world_->changed.notify_all();
  }
  void set_step(std::int64_t) override {}

 protected:
  Work begin(Call call) override {
    if (call.kind == CallKind::send || call.kind == CallKind::receive) return point_to_point(std::move(call));
    const std::lock_guard lock(world_->mutex);
    const MeetingKey key{number_, ranks_[0], num_calls_++};
    std::shared_ptr<Meeting>& meeting = world_->meetings[key];
    if (meeting == nullptr) {
      meeting = std::make_shared<Meeting>();
      meeting->calls.resize(ranks_.size(), Call{.kind = call.kind});
    }
    Tensor scratch = std::move(call.scratch);
    const std::int64_t bytes = call.in.defined() ? detail::sent_bytes(call, rank(), world_size()) : 0;
    meeting->calls[std::size_t(rank())] = std::move(call);
    if (++meeting->num_come == world_size()) {
      try {
        if (meeting->calls[0].in.defined()) perform(meeting->calls);
      } catch (const std::exception& error) {
        world_->failure = error.what();
        world_->failed_rank = of_world(rank());
        world_->changed.notify_all();
        throw;
      }
      meeting->calls.clear();
      meeting->end = Clock::now();
      if (world_->options.transfer_time) {
        const auto time = std::chrono::duration_cast<Clock::duration>(world_->options.transfer_time(bytes));
        for (const int r : ranks_) meeting->end = std::max(meeting->end, world_->link_free[std::size_t(r)]);
        meeting->end += time;
        for (const int r : ranks_) world_->link_free[std::size_t(r)] = meeting->end;
      }
      meeting->is_done = true;
      world_->changed.notify_all();
    }
    return Work(std::make_unique<ThreadPending>(world_, key, world_size(), std::move(scratch)));
  }
  std::unique_ptr<ProcessGroup> part(std::span<const int> ranks, std::int64_t number) override {
    std::vector<int> own;
    for (const int r : ranks) own.push_back(of_world(r));
    const auto place = std::find(ranks.begin(), ranks.end(), rank());
    return std::make_unique<ThreadGroup>(world_, device(), int(place - ranks.begin()), std::move(own), number);
  }

 private:
  int of_world(int r) const { return ranks_[std::size_t(r)]; }
  // Sends at once; a receiver waits here.
  Work point_to_point(Call call) {
    std::unique_lock lock(world_->mutex);
    if (call.kind == CallKind::send) {
      const std::tuple key{of_world(rank()), of_world(call.peer), number_, call.tag, num_sent_[{call.peer, call.tag}]++};
      world_->messages[key] = {call.in.address(), call.in.address() + call.in.bytes()};
      world_->changed.notify_all();
      return {};
    }
    const std::tuple key{of_world(call.peer), of_world(rank()), number_, call.tag, num_received_[{call.peer, call.tag}]++};
    world_->changed.wait(lock, [&] { return world_->messages.contains(key) || !world_->failure.empty(); });
    check<RankLost>(world_->messages.contains(key), "rank ", world_->failed_rank, " is lost: ", world_->failure);
    const std::vector<std::byte>& values = world_->messages.at(key);
    write(call.out, values.data(), 0, std::int64_t(values.size()));
    world_->messages.erase(key);
    return {};
  }

  std::shared_ptr<World> world_;
  const std::vector<int> ranks_;
  const std::int64_t number_;  // 0: of the world itself
  std::int64_t num_calls_ = 0;
  std::map<std::pair<int, int>, std::int64_t> num_sent_, num_received_;
};

}  // namespace

struct RankThreads::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::function<void(int rank)> work;
  std::int64_t num_runs = 0;
  int num_busy = 0;
  bool is_ending = false;
  std::vector<std::thread> threads;

  void serve(int rank) {
    std::int64_t done = 0;
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [&] { return is_ending || num_runs > done; });
      if (num_runs == done) return;
      done = num_runs;
      lock.unlock();
      work(rank);
      lock.lock();
      if (--num_busy == 0) changed.notify_all();
    }
  }
};

RankThreads::RankThreads(int world_size) : state_(std::make_unique<State>()) {
  for (int rank = 0; rank < world_size; ++rank) state_->threads.emplace_back([state = state_.get(), rank] { state->serve(rank); });
}

RankThreads::~RankThreads() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_ending = true;
  }
  state_->changed.notify_all();
  for (std::thread& thread : state_->threads) thread.join();
}

void RankThreads::run(const std::function<void(std::shared_ptr<ProcessGroup>)>& f, const ThreadWorldOptions& options) {
  const auto world = std::make_shared<World>(int(state_->threads.size()), options);
  std::exception_ptr first;
  std::unique_lock lock(state_->mutex);
  const auto keep_first = [&] {
    const std::lock_guard hold(state_->mutex);
    if (first == nullptr) first = std::current_exception();
  };
  state_->work = [&](int rank) {
    std::vector<int> ranks(std::size_t(world->size), 0);
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto group = std::make_shared<ThreadGroup>(world, Device::new_cpu(), rank, std::move(ranks), 0);
    try {
      f(group);
    } catch (const std::exception& error) {
      keep_first();
      group->abort(error.what());
    } catch (...) {
      keep_first();
      group->abort("an exception");
    }
  };
  state_->num_busy = world->size;
  ++state_->num_runs;
  state_->changed.notify_all();
  state_->changed.wait(lock, [&] { return state_->num_busy == 0; });
  if (first != nullptr) std::rethrow_exception(first);
}

void run_ranks(int world_size, const std::function<void(std::shared_ptr<ProcessGroup>)>& f, const ThreadWorldOptions& options) {
  RankThreads(world_size).run(f, options);
}

}  // namespace refrain::testing
