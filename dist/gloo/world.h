// What all groups of one process share: the connections between the ranks, this rank's end of the store, its step, and the one
// place that says how it all ended.
#pragma once

#include <refrain/dist/gloo/mesh.h>
#include <refrain/dist/store/member.h>
#include <refrain/dist/store/server.h>

#include <memory>
#include <mutex>
#include <string>

namespace refrain::detail {

class World {
 public:
  // Returns when every rank has come.
  World(const Place& place, const GroupOptions& options);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return place_.rank; }
  int size() const { return place_.world_size; }
  Mesh& mesh() { return *mesh_; }

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
  std::unique_ptr<Mesh> mesh_;           // outlives the store's thread, which closes it
  std::unique_ptr<StoreMember> store_;

  mutable std::mutex mutex_;  // guards what follows
  std::string mismatch_;      // not empty: the ranks' calls differ
  std::int64_t step_ = -1, first_step_ = -1, num_collectives_ = 0;
  bool has_left_ = false;
};

}  // namespace refrain::detail
