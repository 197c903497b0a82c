// What runs the calls of one group on NCCL: a queue, and the worker that puts calls on the link's stream in order, looks when they
// have run, and ends them when the group is over. Of NCCL's functions only those that make and split links are called elsewhere.
#pragma once

#include <refrain/dist/call_header.h>
#include <refrain/dist/nccl/link.h>
#include <refrain/dist/world.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace refrain::detail {

// How a world that NCCL carries is broken up: workers look, and end their links.
class NcclConnections final : public Connections {
 public:
  explicit NcclConnections(std::unique_ptr<NcclLink> world_link) : link(std::move(world_link)) {}
  void close() override { is_closed = true; }
  std::atomic<bool> is_closed{false};
  std::unique_ptr<NcclLink> link;  // until the world's engine takes it
};

class NcclEngine {
 public:
  struct Operation {
    Call call;
    std::string name;
    std::int64_t step;
    std::uint64_t number;  // among this group's collectives
    bool is_checked;
    std::unique_ptr<NcclLink::Mark> ready;  // all that the device had been given before the call
    struct Split {
      int color, key;
      std::unique_ptr<NcclLink> link;
    };
    Split* split = nullptr;  // no call, but a new link
    int slot = 0;            // of its hashes
    // Guarded by the engine's mutex.
    bool is_done = false;
    std::exception_ptr error = {};
    bool is_message() const { return call.kind == CallKind::send || call.kind == CallKind::receive; }
  };

  // The world's group.
  explicit NcclEngine(std::shared_ptr<World> world);
  NcclEngine(std::shared_ptr<World> world, std::unique_ptr<NcclLink> link, std::vector<int> ranks, bool is_part);
  ~NcclEngine();

  std::shared_ptr<Operation> issue(Call call);  // throws what ended the group
  void wait(Operation& operation);
  bool is_done(const Operation& operation) const;
  World& world() { return *world_; }
  std::unique_ptr<NcclEngine> part(std::span<const int> ranks);
  // Ends the worker. The world's group leaves the world, in peace if all is well here; a part whose calls are not all done ends it.
  // Nothing happens a second time.
  void stop(bool is_well);

  // Pinned memory of a link: what calls are compared by, the hashes of collectives on their way, and those of messages.
  static constexpr std::int64_t kNumCalls = 8, kNumMessages = 128, kHashBytes = 8;
  static std::int64_t header_bytes(int world_size) {
    return (std::int64_t(sizeof(CallHeader)) + kNumCalls * kHashBytes) * world_size + 2 * kHashBytes * kNumMessages;
  }

 private:
  // One collective, or messages that go side by side.
  using Batch = std::vector<std::shared_ptr<Operation>>;
  struct InFlight {
    Batch batch;
    std::unique_ptr<NcclLink::Mark> mark;
    Clock::time_point since;
  };

  std::shared_ptr<Operation> make_operation(Call call, std::string name);
  void run();
  void begin(Batch batch);
  void begin_collective(Operation& operation);
  void begin_messages(const Batch& batch);
  void check_hashes(const Operation& operation) const;
  // Until fewer than so many batches of the same kind are on their way.
  void wait_for_slots(bool of_messages, std::int64_t limit);
  void compare(const Operation& operation);
  // Ends what has run, in order; whatever goes wrong ends everything.
  void look();
  void end(Batch& batch, const std::exception_ptr& error);
  // The link's end: what is on its way stops, and its memory is nobody's any more.
  void break_up() noexcept;
  // What this error means for whoever waits for the operation.
  std::exception_ptr explained(const std::exception_ptr& error, const Operation& operation);
  // Called while the worker waits: throws when the world is over or the call is overdue.
  void be_patient();
  // Where hashes lie in the link's headers: of a collective, rank 0's first; of a message, in or out.
  std::int64_t call_hashes(int slot) const;
  std::int64_t message_hash_at(int slot, bool is_incoming) const;

  const std::shared_ptr<World> world_;
  NcclConnections& connections_;
  const std::unique_ptr<NcclLink> link_;
  const std::vector<int> ranks_;  // the world's
  const bool is_part_;
  int rank_ = 0;  // in this group

  // The worker's own.
  std::deque<InFlight> in_flight_;
  Clock::time_point deadline_;  // of the call that is being put on the stream
  bool is_broken_ = false;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  std::deque<Batch> queue_;
  Batch posted_;  // messages that nobody has waited for yet
  std::uint64_t num_collectives_ = 0;
  std::int64_t num_open_ = 0;  // operations that are not done
  bool is_stopping_ = false, is_stopped_ = false;
  std::thread worker_;
};

}  // namespace refrain::detail
