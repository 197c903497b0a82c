#include <refrain/kernels/emulator/grid_pool.h>
#include <refrain/kernels/emulator/options.h>

#include <algorithm>
#include <atomic>
#include <cfenv>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace refrain::emulator {

namespace {

class Pool {
 public:
  void run(std::int64_t num_blocks, const std::function<void(std::int64_t)>& run) {
    const int cores = std::max(1, int(std::thread::hardware_concurrency()));
    const std::int64_t num_wanted = options().num_threads > 0 ? options().num_threads : cores;
    const int num_helpers = int(std::min(num_wanted, num_blocks)) - 1;
    Job job{&run, num_blocks};
    if (num_helpers > 0) {
      const std::lock_guard lock(mutex_);
      while (int(helpers_.size()) < num_helpers) helpers_.emplace_back([this] { help(); });
      job_ = &job;
      num_open_ = num_helpers;
      wake_.notify_all();
    }
    work(job);
    if (num_helpers == 0) return;
    std::unique_lock lock(mutex_);
    job_ = nullptr;  // who has not begun need not
    num_open_ = 0;
    done_.wait(lock, [&] { return num_busy_ == 0; });
  }

 private:
  struct Job {
    const std::function<void(std::int64_t)>* run;
    std::int64_t num_blocks;
    std::atomic<std::int64_t> next{0};
  };

  static void work(Job& job) {
    for (std::int64_t i = job.next++; i < job.num_blocks; i = job.next++) (*job.run)(i);
  }

  void help() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return num_open_ > 0; });
      --num_open_;
      ++num_busy_;
      Job& job = *job_;
      lock.unlock();
      work(job);
      lock.lock();
      if (--num_busy_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> helpers_;
  Job* job_ = nullptr;
  int num_open_ = 0, num_busy_ = 0;
};

// The caller's floating-point environment may flush subnormals, as the engine's own kernels do; a GPU's does not.
class DefaultArithmetic {
 public:
  DefaultArithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultArithmetic() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_;
};

}  // namespace

void run_blocks(std::int64_t num_blocks, const std::function<void(std::int64_t)>& run) {
  static Pool* pool = new Pool;  // never destroyed: its threads sleep until the process ends
  const DefaultArithmetic arithmetic;
  pool->run(num_blocks, run);
}

}  // namespace refrain::emulator
