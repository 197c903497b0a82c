#include <refrain/kernels/emulator/block.h>
#include <refrain/kernels/emulator/grid_pool.h>
#include <refrain/kernels/emulator/launch.h>
#include <refrain/kernels/emulator/options.h>
#include <refrain/kernels/emulator/queue.h>
#include <refrain/kernels/emulator/race.h>
#include <refrain/kernels/emulator/report.h>
#include <refrain/kernels/emulator/watchdog.h>

#include <atomic>
#include <mutex>

namespace refrain::emulator {

cudaError_t launch(const Kernel& kernel, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream, std::function<void()> body) {
  const std::uint64_t num_threads = std::uint64_t(block.x) * block.y * block.z;
  if (num_threads == 0 || num_threads > 1024 || block.z > 64) return cudaErrorInvalidConfiguration;
  if (grid.x == 0 || grid.x > 0x7fffffffu || grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535) return cudaErrorInvalidConfiguration;
  if (shared_bytes > options().max_shared_bytes) return cudaErrorInvalidValue;
  // The names may not live until a deferred launch runs.
  submit(stream, [name = std::string(kernel.name), function = kernel.function, symbol = kernel.symbol, grid, block, shared_bytes,
                  run = std::move(body)] { run_grid({name, function, symbol}, grid, block, shared_bytes, run); }, kernel.function);
  return cudaSuccess;
}

void run_grid(const Kernel& kernel, dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body) {
  static std::atomic<std::uint32_t> num_launches{0};
  static std::mutex one_at_a_time;  // what races are looked for in is one launch
  const std::lock_guard lock(one_at_a_time);
  const std::uint32_t launch = ++num_launches;
  const std::int64_t num_blocks = std::int64_t(grid.x) * grid.y * grid.z;
  const bool is_reverse = options().order == Order::reverse;
  std::string failure;
  std::mutex failure_mutex;
  std::atomic<bool> has_failed{false};
  const WatchdogScope watchdog(kernel.name);
  start_race_check();
  run_blocks(num_blocks, [&](std::int64_t i) {
    if (has_failed) return;
    static thread_local Block emulated;
    const std::int64_t linear = is_reverse ? num_blocks - 1 - i : i;
    Block::Place place;
    place.index = uint3{unsigned(linear % grid.x), unsigned(linear / grid.x % grid.y), unsigned(linear / (std::int64_t(grid.x) * grid.y))};
    place.extent = block;
    place.grid_extent = grid;
    place.linear = std::uint32_t(linear);
    place.launch = launch;
    const std::string wrong = emulated.run(place, shared_bytes, body);
    if (wrong.empty()) return;
    const std::lock_guard failure_lock(failure_mutex);
    if (!has_failed) failure = wrong;
    has_failed = true;
  });
  if (failure.empty()) failure = end_race_check();
  count_launch(kernel, num_blocks);
  if (!failure.empty()) throw Error(std::string(kernel.name) + ": " + failure);
}

}  // namespace refrain::emulator
