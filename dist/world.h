// What all groups of one process share: the connections between the ranks, this rank's end of the store, its step, and the one
// place that says how it all ended.
#pragma once

#include <refrain/dist/store/member.h>
#include <refrain/dist/store/server.h>

#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>

namespace refrain::detail {

// A transfer failed. What the world makes of it names the rank that is to blame.
struct TransferError : std::runtime_error {
  TransferError(int other, bool timed_out, const std::string& text)
      : std::runtime_error(text), peer(other), is_overdue(timed_out) {}
  int peer;  // -1: this rank itself may be to blame
  bool is_overdue;
};

// What carries bytes between the ranks; every engine has its own.
class Connections {
 public:
  virtual ~Connections() = default;
  // Breaks them: transfers here end, and the other ranks' with this one. From any thread, more than once.
  virtual void close() = 0;
};

class World {
 public:
  // Returns when every rank has come. `connect` makes the connections by way of the store; it throws RankLost.
  using Connect = std::function<std::unique_ptr<Connections>(StoreMember&)>;
  World(const Place& place, const GroupOptions& options, const Connect& connect);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return place_.rank; }
  int size() const { return place_.world_size; }
  const GroupOptions& options() const { return options_; }
  Connections& connections() { return *connections_; }

  struct Position {
    std::int64_t step;
    bool is_checked;  // calls are compared across ranks
  };
  Position position() const;
  // Before a call begins: throws what ended the world, else tells the store where this rank is.
  void enter(const std::string& call, std::int64_t step, bool is_collective);
  void set_step(std::int64_t step);  // throws what ended the world

  void throw_mismatch() const;  // if there is one
  [[noreturn]] void end_by_mismatch(std::string text);
  // What a failed transfer of this operation means for the caller.
  [[noreturn]] void explain(const TransferError& error, const std::string& operation, std::int64_t step);
  void abort(std::string_view reason);
  // The world is left: in peace, or all others hear of it. Nothing happens a second time.
  void leave(bool is_well);

 private:
  [[noreturn]] void throw_lost(const Verdict& verdict, const std::string& operation, std::int64_t step) const;
  void check_not_left() const;

  const Place place_;
  const GroupOptions options_;
  const std::string host_;
  std::unique_ptr<StoreServer> server_;  // rank 0's
  std::unique_ptr<Connections> connections_;  // outlive the store's thread, which closes them
  std::unique_ptr<StoreMember> store_;

  mutable std::mutex mutex_;  // guards what follows
  std::string mismatch_;      // not empty: the ranks' calls differ
  std::int64_t step_ = -1, first_step_ = -1, num_collectives_ = 0;
  bool has_left_ = false;
};

}  // namespace refrain::detail
