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
// parallel work, also when a single thread does it, so that results do not depend on where a piece ran. Other processors
// than x86 keep them, everywhere alike.
class FlushSubnormals {
 public:
#if defined(__x86_64__)
  FlushSubnormals() : old_(_mm_getcsr()) { _mm_setcsr(old_ | 0x8040u); }
  ~FlushSubnormals() { _mm_setcsr(old_); }

 private:
  unsigned old_;
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

// One job at a time. A piece is claimed by counting up a ticket that also carries the job's number, so a thread that
// wakes late cannot claim from a job it knows nothing of, and nobody waits for threads that took no piece: on a crowded
// machine the caller simply does more of them.
class Pool {
 public:
  explicit Pool(int size) {
    for (int i = 1; i < size; ++i) workers_.emplace_back([this, i] { work(i); });
  }
  ~Pool() {
    stopping_.store(true);
    {
      std::lock_guard lock(mutex_);
      ticket_.fetch_add(kJob);
    }
    wake_.notify_all();
    for (std::thread& worker : workers_) worker.join();
  }

  // False when another thread is using the pool: the caller then does its pieces alone.
  bool try_run(std::int64_t num_pieces, detail::PieceFunction function, void* context) {
    std::unique_lock busy(busy_, std::try_to_lock);
    if (!busy || num_pieces >= std::int64_t(kJob) - 1) return false;
    const std::uint64_t job = ticket_.load(std::memory_order_relaxed) / kJob + 1;
    // Nothing more to claim from the last job, before its fields are overwritten: whoever reads a new field sees this.
    ticket_.store(job * kJob - 1);
    function_.store(function, std::memory_order_release);
    context_.store(context, std::memory_order_release);
    num_pieces_.store(num_pieces, std::memory_order_release);
    num_done_.store(0, std::memory_order_relaxed);
    failure_ = nullptr;
    ticket_.store(job * kJob);
    if (num_sleeping_.load() > 0) {
      { std::lock_guard lock(mutex_); }  // who is about to sleep has seen the job, or will be woken
      wake_.notify_all();
    }
    inside_pool = true;
    take_pieces(job);
    inside_pool = false;
    for (int spins = 0; num_done_.load(std::memory_order_acquire) != num_pieces; ++spins) {
      if (spins < 4096) pause_briefly();
      else std::this_thread::yield();  // a thread with a piece is waiting for a core
    }
    if (failure_) std::rethrow_exception(failure_);
    return true;
  }

 private:
  static constexpr std::uint64_t kJob = std::uint64_t{1} << 32;  // ticket = job number * kJob + next piece

  void take_pieces(std::uint64_t job) {
    FlushSubnormals flush;
    for (;;) {
      // Read before the claim: if the claim succeeds the job was not over, hence these were its own.
      const detail::PieceFunction function = function_.load(std::memory_order_acquire);
      void* const context = context_.load(std::memory_order_acquire);
      const std::int64_t num_pieces = num_pieces_.load(std::memory_order_acquire);
      std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
      do {
        if (ticket / kJob != job || std::int64_t(ticket % kJob) >= num_pieces) return;
      } while (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel));
      try {
        function(context, std::int64_t(ticket % kJob));
      } catch (...) {
        std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
      num_done_.fetch_add(1, std::memory_order_acq_rel);
    }
  }

  void work(int index) {
    current_thread_index = index;
    inside_pool = true;
    std::uint64_t seen = 0;
    const auto has_new_job = [&] { return ticket_.load() / kJob != seen; };
    for (;;) {
      // Spin through the short gaps between the kernels of one step, then sleep.
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(100);
      while (!has_new_job() && std::chrono::steady_clock::now() < deadline) {
        for (int i = 0; i < 64 && !has_new_job(); ++i) pause_briefly();
      }
      if (!has_new_job()) {
        std::unique_lock lock(mutex_);
        num_sleeping_.fetch_add(1);
        wake_.wait(lock, has_new_job);
        num_sleeping_.fetch_sub(1);
      }
      if (stopping_.load()) return;
      seen = ticket_.load() / kJob;
      take_pieces(seen);
    }
  }

  std::vector<std::thread> workers_;
  std::mutex busy_, mutex_;
  std::condition_variable wake_;
  std::atomic<std::uint64_t> ticket_{0};
  std::atomic<std::int64_t> num_done_{0}, num_pieces_{0};
  std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<detail::PieceFunction> function_{nullptr};
  std::atomic<void*> context_{nullptr};
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
