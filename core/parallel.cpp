#include <refrain/core/check.h>
#include <refrain/core/parallel.h>

#include <sched.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace refrain {

namespace {

// Subnormals cost a hundred cycles each on some processors and appear in every softmax tail. They are flushed in all
// parallel work, also when a single thread does it, so that results do not depend on where a piece ran.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : old_(_mm_getcsr()) { _mm_setcsr(old_ | 0x8040u); }
  ~FlushSubnormals() { _mm_setcsr(old_); }

 private:
  unsigned old_;
#elif defined(__aarch64__)
  FlushSubnormals() {
    asm volatile("mrs %0, fpcr" : "=r"(old_));
    asm volatile("msr fpcr, %0" ::"r"(old_ | (std::uint64_t{1} << 24)));
  }
  ~FlushSubnormals() { asm volatile("msr fpcr, %0" ::"r"(old_)); }

 private:
  std::uint64_t old_;
#endif
};

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

thread_local int current_thread_index = 0;
thread_local bool inside_pool = false;

class Pool {
 public:
  explicit Pool(int size) {
    for (int i = 1; i < size; ++i) workers_.emplace_back([this, i] { work(i); });
  }
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
      generation_.fetch_add(1);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  // False when another thread is using the pool: the caller then does its pieces alone.
  bool try_run(std::int64_t num_pieces, detail::PieceFunction function, void* context) {
    std::unique_lock busy(busy_, std::try_to_lock);
    if (!busy) return false;
    function_ = function;
    context_ = context;
    num_pieces_ = num_pieces;
    next_.store(0, std::memory_order_relaxed);
    failure_ = nullptr;
    running_.store(int(workers_.size()), std::memory_order_relaxed);
    {
      std::lock_guard lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    inside_pool = true;
    take_pieces();
    inside_pool = false;
    while (running_.load(std::memory_order_acquire) != 0) pause_briefly();
    if (failure_) std::rethrow_exception(failure_);
    return true;
  }

 private:
  void take_pieces() {
    FlushSubnormals flush;
    for (;;) {
      const std::int64_t piece = next_.fetch_add(1, std::memory_order_relaxed);
      if (piece >= num_pieces_) return;
      try {
        function_(context_, piece);
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
    }
  }

  void work(int index) {
    current_thread_index = index;
    inside_pool = true;
    std::uint64_t seen = 0;
    for (;;) {
      // Spin through the short gaps between the kernels of one step, then sleep.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
      while (generation_.load(std::memory_order_acquire) == seen && std::chrono::steady_clock::now() < deadline) {
        for (int i = 0; i < 64 && generation_.load(std::memory_order_acquire) == seen; ++i) pause_briefly();
      }
      if (generation_.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
      }
      seen = generation_.load(std::memory_order_acquire);
      if (stopping_) return;
      take_pieces();
      running_.fetch_sub(1, std::memory_order_release);
    }
  }

  std::vector<std::thread> workers_;
  std::mutex busy_, mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> generation_{0};
  std::atomic<std::int64_t> next_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  detail::PieceFunction function_ = nullptr;
  void* context_ = nullptr;
  std::int64_t num_pieces_ = 0;
  std::exception_ptr failure_;
};

int positive_from_environment(const char* name) {
  const char* text = std::getenv(name);
  int value = 0;
  if (text == nullptr) return 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), value);
  return error == std::errc{} && value > 0 ? value : 0;
}

int default_num_threads() {
  if (const char* text = std::getenv("REFRAIN_NUM_THREADS")) {
    const int count = positive_from_environment("REFRAIN_NUM_THREADS");
    check(count >= 1 && count <= 1024, "REFRAIN_NUM_THREADS must be 1 … 1024, got '", text, "'");
    return count;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  const int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : int(std::thread::hardware_concurrency());
  int ranks = 1;
  for (const char* name : {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE"}) {
    if (const int value = positive_from_environment(name)) {
      ranks = value;
      break;
    }
  }
  return std::max(1, cores / ranks);
}

struct PoolHolder {
  std::mutex mutex;
  std::atomic<int> size{0};  // 0: not chosen yet
  std::shared_ptr<Pool> pool;
};

PoolHolder& pool_holder() {
  static PoolHolder* holder = new PoolHolder;  // workers sleep until the process ends
  return *holder;
}

std::shared_ptr<Pool> current_pool() {
  PoolHolder& holder = pool_holder();
  std::lock_guard lock(holder.mutex);
  if (!holder.pool) holder.pool = std::make_shared<Pool>(num_threads());
  return holder.pool;
}

}  // namespace

int num_threads() {
  PoolHolder& holder = pool_holder();
  int size = holder.size.load();
  if (size == 0) {
    size = default_num_threads();
    holder.size.store(size);
  }
  return size;
}

void set_num_threads(int count) {
  check(count >= 1 && count <= 1024, "number of threads must be 1 … 1024, got ", count);
  PoolHolder& holder = pool_holder();
  std::lock_guard lock(holder.mutex);
  if (holder.size.load() == count) return;
  holder.size.store(count);
  holder.pool.reset();
}

int thread_index() { return current_thread_index; }

namespace detail {

void run_pieces(std::int64_t num_pieces, PieceFunction function, void* context) {
  if (num_pieces <= 0) return;
  if (num_pieces > 1 && !inside_pool && num_threads() > 1 && current_pool()->try_run(num_pieces, function, context)) return;
  FlushSubnormals flush;
  for (std::int64_t piece = 0; piece < num_pieces; ++piece) function(context, piece);
}

}  // namespace detail

}  // namespace refrain
