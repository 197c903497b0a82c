// Copies between tensors that go on while the caller computes: what is fetched from host memory, or goes back there.
#pragma once

#include <refrain/core/tensor.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>

namespace refrain {

// One thread, which is started by the first copy. Copies end in the order in which they were begun. Between host memories they
// go on by themselves; where a CUDA device takes part they are done when begin() returns. Plan devices copy nothing.
class Copier {
 public:
  using Ticket = std::int64_t;
  static constexpr Ticket kDone = 0;

  Copier() = default;
  ~Copier();  // waits for what is under way
  Copier(const Copier&) = delete;
  Copier& operator=(const Copier&) = delete;

  // Both contiguous, of one size in bytes and one dtype; they stay alive and unread until wait(). Does not count as a new version
  // of `to`. Throws InvalidArgument.
  Ticket begin(const Tensor& to, const Tensor& from);
  void wait(Ticket ticket);

 private:
  struct Job {
    std::byte* to;
    const std::byte* from;
    std::int64_t bytes;
  };
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  Ticket num_begun_ = 0, num_done_ = 0;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace refrain
