// One block of a grid on one host thread: its device threads as fibers, its shared memory, and who waits for whom.
#pragma once

#include <refrain/kernels/emulator/fiber.h>
#include <refrain/kernels/emulator/shared_memory.h>
#include <refrain/kernels/emulator/thread.h>
#include <refrain/kernels/emulator/warp.h>

#include <functional>
#include <memory>
#include <vector>

namespace refrain::emulator {

// An asynchronous copy into shared memory that was started and not yet waited for.
struct AsyncCopy {
  void* to = nullptr;
  const void* from = nullptr;  // null: zeros
  unsigned bytes = 0, group = 0;
};

struct DeviceThread {
  enum class State : std::uint8_t { ready, at_barrier, at_warp, done };
  Thread seen;  // what device code sees of itself
  Fiber fiber;
  State state = State::ready;
  Site site;               // where it waits
  const char* what = "";   // and in what
  void* argument = nullptr;  // of the warp's operation it waits in
  std::vector<AsyncCopy> copies;
  unsigned copy_group = 0;
  std::uint16_t stamp = 0;       // when it last took part in a __syncwarp: its warp's count of them
  std::uint16_t known[32] = {};  // the other lanes' stamps as of the last __syncwarp with them
};

class Block {
 public:
  Block();
  ~Block();

  struct Place {
    uint3 index;
    dim3 extent, grid_extent;
    std::uint32_t linear = 0, launch = 0;
  };
  // Runs every device thread to its end. Returns what went wrong, or nothing.
  std::string run(const Place& place, std::size_t dynamic_shared_bytes, const std::function<void()>& body);

  // The block that the calling host thread runs; null outside of kernels.
  static Block* current() { return current_; }

  // These throw where a GPU would hang or do what nobody defined; the exception ends the kernel.
  void barrier(Site site);
  void warp_operation(unsigned mask, WarpOperation operation, void* argument, Site site, const char* what);

  SharedMemory& shared() { return shared_; }
  DeviceThread& now() { return *now_; }
  DeviceThread& thread(unsigned linear) { return threads_[linear]; }
  const Place& place() const { return place_; }
  std::uint32_t barriers() const { return num_barriers_; }  // passed so far, from 1
  std::uint32_t interval() const { return interval_; }      // between barriers, of all blocks this object ran
  std::uint64_t num_switches() const { return num_switches_; }
  std::string where() const;  // the waiting and running threads, for messages

 private:
  struct Pending {  // a warp's operation that not all lanes have reached
    unsigned mask = 0, arrived = 0;
    WarpOperation operation = nullptr;
    Site site;
    const char* what = "";
  };
  static thread_local Block* current_;

  static void entry();
  void run_body();
  void finish();
  void note_failure(std::string message);
  void set_up(const Place& place, std::size_t dynamic_shared_bytes);
  void change_to(DeviceThread& to);
  void next();
  void release_barrier();
  void complete(Pending& pending, unsigned last_lane, unsigned warp);
  void make_ready(std::vector<unsigned>& threads);
  std::uint64_t random();

  std::vector<DeviceThread> threads_;
  DeviceThread host_;  // the host thread's own stack
  DeviceThread* now_ = nullptr;
  DeviceThread* before_ = nullptr;  // who switched to now_
  std::vector<unsigned> ready_;     // from next_ on
  std::size_t next_ = 0;
  std::vector<unsigned> woken_;
  std::vector<std::vector<Pending>> pending_;  // of each warp
  std::uint16_t warp_stamps_[32] = {};
  SharedMemory shared_;
  Place place_;
  const std::function<void()>* body_ = nullptr;
  unsigned num_threads_ = 0, num_live_ = 0, num_at_barrier_ = 0;
  Site barrier_site_;
  std::uint32_t num_barriers_ = 0, interval_ = 0;
  std::uint64_t random_ = 1, num_switches_ = 0;
  std::string failure_;
  bool has_failed_ = false;
};

}  // namespace refrain::emulator
