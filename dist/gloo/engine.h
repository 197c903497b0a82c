// What runs the calls of one Gloo group: a queue, and the worker that empties it, or whoever waits for a call that the worker has
// not begun: a call that is waited for at once costs no change of thread.
#pragma once

#include <refrain/dist/call.h>
#include <refrain/dist/gloo/mesh.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace refrain::detail {

class Engine {
 public:
  struct Operation {
    Call call;
    std::int64_t step;
    std::uint64_t number;  // among this group's collectives
    bool is_checked;
    // Guarded by the engine's mutex.
    bool is_done = false;
    std::exception_ptr error = {};
    Transfer transfer = {};  // of a send or receive: begun in its turn, ended by whoever waits
  };

  // The world's group. The world's connections are a Mesh.
  explicit Engine(std::shared_ptr<World> world);
  // One of some of its ranks, in this order. Its messages bear the number; throws InvalidArgument where there is no room for it.
  Engine(std::shared_ptr<World> world, std::vector<int> ranks, std::int64_t number);
  ~Engine();

  std::shared_ptr<Operation> issue(Call call);  // throws what ended the group
  void wait(Operation& operation);
  bool is_done(const Operation& operation) const;
  World& world() { return *world_; }
  std::string name_of(const Call& call) const { return call.text(is_part() ? std::span(ranks_) : std::span<const int>()); }
  // A part of this group.
  std::unique_ptr<Engine> part(std::span<const int> ranks, std::int64_t number) const;
  // Ends the worker; what has not been done fails. The world's group leaves the world, in peace if all is well here; a part whose
  // calls are not all done ends it. Nothing happens a second time.
  void stop(bool is_well);

 private:
  void run();
  // Takes the first of the queue and does it. `lock` is held before and after, not meanwhile.
  void do_next(std::unique_lock<std::mutex>& lock);
  void do_operation(Operation& operation);
  void compare(const Operation& operation);
  bool is_part() const { return number_ > 0; }

  const std::shared_ptr<World> world_;  // a Mesh's
  Mesh& mesh_;
  const std::vector<int> ranks_;  // the world's
  const std::int64_t number_;     // 0: of the world itself
  int rank_ = 0;                  // in this group

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  std::deque<std::shared_ptr<Operation>> queue_;
  std::uint64_t num_collectives_ = 0;
  bool is_busy_ = false;  // one operation is being done
  bool is_stopping_ = false, is_stopped_ = false;
  std::thread worker_;
};

}  // namespace refrain::detail
