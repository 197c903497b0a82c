// A rank's end of the store: its connection, and the thread that keeps it alive beside all work and learns how the group ends.
#pragma once

#include <refrain/dist/join_group.h>
#include <refrain/dist/net/frame.h>
#include <refrain/dist/net/socket.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace refrain::detail {

// How a group ended.
struct Verdict {
  int rank;
  std::string host, why;
};

// Throws the RankLost of a group that ended before it was one.
[[noreturn]] void throw_lost_while_forming(const Verdict& verdict);

class StoreMember {
 public:
  // Connects and is admitted. Throws RendezvousError.
  StoreMember(const Place& place, const GroupOptions& options);
  // Leaves without a word; leave() comes before it where all is well.
  ~StoreMember();
  StoreMember(const StoreMember&) = delete;
  StoreMember& operator=(const StoreMember&) = delete;

  // Every rank's part, in rank order; all ranks call it the same number of times. Throws RankLost.
  std::vector<std::string> exchange(std::string_view part);

  // Called once, by the member's thread, when the group is over.
  void on_verdict(std::function<void()> function);
  std::optional<Verdict> verdict() const;
  // The same, waiting for it.
  std::optional<Verdict> wait_for_verdict(std::chrono::milliseconds time) const;

  // Where this rank is: what the others are told when it holds them up.
  void set_position(std::int64_t step, std::int64_t num_calls, std::string call);

  void suspect(int rank, std::string_view why);
  void report_overdue(std::string_view text);
  void abort(std::string_view why);
  // Says goodbye, and waits a while until everybody has: what was sent last then has arrived.
  bool leave(std::chrono::milliseconds patience);  // whether they have

  // The address of this machine by which rank 0 is reached.
  const std::string& local_address() const { return local_address_; }

 private:
  struct Dropped {};  // the other side closed the connection before it said anything
  void enter(const Place& place, Clock::time_point deadline);
  Frame read_frame(FrameReader& reader, Clock::time_point deadline);
  void run();
  void take(const Frame& frame);
  void post(FrameType type, std::string_view payload);
  void end(Verdict verdict);
  bool flush();

  const Place place_;
  const GroupOptions options_;
  Socket socket_, wake_read_, wake_write_;
  std::string local_address_, master_host_;  // the latter is rank 0's machine by its own name
  FrameReader reader_;

  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  std::string out_;
  std::optional<Verdict> verdict_;
  std::optional<std::vector<std::string>> exchanged_;
  std::function<void()> on_verdict_;
  std::int64_t step_ = -1, num_calls_ = 0;
  std::string call_;
  bool is_leaving_ = false, have_all_left_ = false, is_stopping_ = false;
  std::thread thread_;
};

}  // namespace refrain::detail
