// Ranks that work together: collective operations on tensors, issued in the same order on every rank.
#pragma once

#include <refrain/core/tensor.h>
#include <refrain/dist/rank_lost.h>
#include <refrain/kernels/reduce/reduce_ranks.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace refrain {

std::string_view name_of(ReduceOp op);

namespace detail {

// An operation under way, as its engine keeps it.
class Pending {
 public:
  virtual ~Pending() = default;  // an engine's is finished or abandoned here: nobody touches the tensors afterwards
  virtual void wait() = 0;
  virtual bool is_done() const = 0;
};

struct Call;  // dist/call.h

}  // namespace detail

// A handle on one operation. It must be waited for; one that is destroyed while its operation is under way aborts the group.
class [[nodiscard]] Work {
 public:
  Work() = default;  // done
  explicit Work(std::unique_ptr<detail::Pending> pending) : pending_(std::move(pending)) {}
  // Ends the operation and frees its scratch, here and nowhere else. Throws RankLost naming rank, host, step and operation, or
  // CallMismatch. A second call does nothing.
  void wait();
  bool is_done() const { return pending_ == nullptr || pending_->is_done(); }

 private:
  std::unique_ptr<detail::Pending> pending_;
};

// Tensors are contiguous and on the group's device; they must stay alive and unread until wait(), and so must what is written.
//
// Results have the same bits on all ranks. Sums are taken in rank order, rank 0 first: f32, f64 and integers in their own
// type (integers wrap), f16 and bf16 in f32 with one rounding at the end. A mean is that sum divided by the number of ranks
// before any rounding; it is for floating dtypes. max of a NaN is NaN. Sizes of 0 are allowed everywhere.
//
// A call takes its scratch from the device's arena (MemoryKind communication) on the calling thread before anything is sent.
// Throws InvalidArgument before anything is changed.
class ProcessGroup {
 public:
  virtual ~ProcessGroup() = default;
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const Device& device() const { return device_; }

  Work all_reduce(const Tensor& t, ReduceOp op);  // in place
  // `in` is the ranks' pieces one after the other, counts[r] elements for rank r; `out` receives this rank's. `out` may be that
  // piece of `in` itself.
  Work reduce_scatter(const Tensor& in, const Tensor& out, std::span<const std::int64_t> counts, ReduceOp op);
  // The reverse: `in` is this rank's counts[rank] elements. It may be its own place in `out`.
  Work all_gather(const Tensor& in, const Tensor& out, std::span<const std::int64_t> counts);
  Work broadcast(const Tensor& t, int root);
  // Point to point: both ends name the same tag, and messages of a pair and tag arrive in order. Not part of the common order.
  Work send(const Tensor& t, int to, int tag);
  Work receive(const Tensor& t, int from, int tag);
  // Returns when every rank has come. Throws as Work::wait() does.
  void barrier();

  // A group of some of these ranks, which are its ranks 0 … n-1 in the order given: an axis of a mesh. Every rank of this group
  // calls it at the same place among its calls, with the list that it is in itself; the lists cover the ranks once. Promises are
  // the same. The new group has an order of calls and tags of its own, so calls of both may be under way at once and ranks may
  // make them in either order; it shares connections, step and fate: who aborts one ends all, and errors name the world's
  // ranks. This group must outlive it. Throws InvalidArgument for a list that is none of these, and where lists differ.
  std::unique_ptr<ProcessGroup> split(std::span<const int> ranks);

  // Ends the group for everybody: other ranks' operations throw RankLost with this rank's name and the reason. For a rank that
  // cannot go on; destroying a group during an exception does it as well.
  virtual void abort(std::string_view reason) = 0;
  // The step that messages name from now on. Calls are compared across ranks until the second step begins.
  virtual void set_step(std::int64_t step) = 0;
  // What this rank's operations have sent so far, as their algorithms count it.
  std::int64_t bytes_sent() const { return bytes_sent_; }

 protected:
  ProcessGroup(const Device& device, int rank, int world_size);
  // Begins a call that is in order; `call.scratch` is there.
  virtual Work begin(detail::Call call) = 0;
  // split() of a list that is in order. No other group that any of these ranks is in has this number; it is above 0.
  virtual std::unique_ptr<ProcessGroup> part(std::span<const int> ranks, std::int64_t number) = 0;

 private:
  Work issue(detail::Call call);

  Device device_;
  int rank_, world_size_;
  std::int64_t bytes_sent_ = 0;
  std::shared_ptr<std::int64_t> num_groups_ = std::make_shared<std::int64_t>(1);  // that this process has been in, of one world
};

// A world of one.
std::unique_ptr<ProcessGroup> single_group(const Device& device);
// Sizes only: takes the scratch that this rank of such a world would take, and sends nothing.
std::unique_ptr<ProcessGroup> planned_group(const Device& plan, int rank, int world_size);

}  // namespace refrain
