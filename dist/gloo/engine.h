// What runs a Gloo group's calls: a queue, the worker that empties it, and the one place that says how the group ended.
#pragma once

#include <refrain/dist/call.h>
#include <refrain/dist/gloo/mesh.h>
#include <refrain/dist/store/member.h>
#include <refrain/dist/store/server.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>

namespace refrain::detail {

class Engine {
 public:
  struct Operation {
    Call call;
    std::int64_t step;
    std::uint64_t number;  // among this rank's collectives
    bool is_checked;
    // Guarded by the engine's mutex.
    bool is_done = false;
    std::exception_ptr error = {};
    Transfer transfer = {};  // of a send or receive: begun by the worker, ended by whoever waits
  };

  Engine(const Place& place, const GroupOptions& options);
  ~Engine();

  std::shared_ptr<Operation> issue(Call call);  // throws what ended the group
  void wait(Operation& operation);
  bool is_done(const Operation& operation) const;
  void abort(std::string_view reason);
  void set_step(std::int64_t step);  // throws what ended the group
  // Ends the worker; what has not been done fails. Nothing happens a second time.
  void stop(bool is_well);

 private:
  void run();
  void do_operation(Operation& operation);
  void compare(const Operation& operation);
  // Never returns: what a failed transfer of this operation means for the caller.
  [[noreturn]] void explain(const TransferError& error, const std::string& operation, std::int64_t step);
  [[noreturn]] void throw_lost(const Verdict& verdict, const std::string& operation, std::int64_t step) const;

  const Place place_;
  const GroupOptions options_;
  const std::string host_;
  std::unique_ptr<StoreServer> server_;  // rank 0's
  std::unique_ptr<StoreMember> store_;
  std::unique_ptr<Mesh> mesh_;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  std::deque<std::shared_ptr<Operation>> queue_;
  std::string mismatch_;  // not empty: the ranks' calls differ
  std::int64_t step_ = -1, first_step_ = -1;
  std::uint64_t num_collectives_ = 0;
  bool is_stopping_ = false, is_stopped_ = false;
  std::thread worker_;
};

}  // namespace refrain::detail
