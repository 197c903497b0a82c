// One block at work: its warps, its shared memory, its barrier.
#pragma once

#include <refrain/kernels/emulator/ptx/warp.h>

#include <memory>

namespace refrain::emulator::ptx {

struct Launch {
  const Function* function;
  Dim grid, block;
  std::size_t dynamic_shared_bytes;
  const std::byte* parameters;
  Order order;
};

class BlockRun {
 public:
  explicit BlockRun(const Launch& launch);
  ~BlockRun();
  BlockRun(const BlockRun&) = delete;
  void run(Dim index, std::uint64_t linear);  // throws Error

  const Launch& launch() const { return launch_; }
  Dim index() const { return index_; }
  std::byte* shared() const { return shared_; }
  std::size_t shared_bytes() const { return shared_bytes_; }
  bool holds_shared(const std::byte* address) const { return address >= shared_ && address < shared_ + shared_bytes_; }
  // The host address of `bytes` of shared memory at an offset; throws when they are not the block's.
  std::byte* shared_at(const Warp& warp, const Instruction& i, int lane, std::uint64_t offset, std::size_t bytes) const;

  // bar.red: how many threads came to the barrier so far, and for how many the predicate holds.
  int votes = 0, voters = 0;

 private:
  void start_warps();
  void open_barrier();
  [[noreturn]] void fail_deadlock() const;

  Launch launch_;
  Dim index_;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::vector<std::byte> register_memory_, shared_memory_;
  std::byte* shared_ = nullptr;
  std::size_t shared_bytes_ = 0;
};

// Runs the warp until all of its groups wait or are done. False when it could do nothing.
bool advance(Warp& warp);

}  // namespace refrain::emulator::ptx
