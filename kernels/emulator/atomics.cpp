#include <refrain/kernels/emulator/atomics.h>
#include <refrain/kernels/emulator/race.h>

#include <atomic>

namespace refrain::emulator {

std::uint64_t atomic_load(const void* address, std::size_t bytes) {
  if (bytes == 4) return __atomic_load_n(static_cast<const std::uint32_t*>(address), __ATOMIC_RELAXED);
  return __atomic_load_n(static_cast<const std::uint64_t*>(address), __ATOMIC_RELAXED);
}

bool atomic_compare_exchange(void* address, std::uint64_t& expected, std::uint64_t desired, std::size_t bytes) {
  note_atomic(address, bytes);
  if (bytes == 8)
    return __atomic_compare_exchange_n(static_cast<std::uint64_t*>(address), &expected, desired, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  auto narrow = std::uint32_t(expected);
  const bool is_done =
      __atomic_compare_exchange_n(static_cast<std::uint32_t*>(address), &narrow, std::uint32_t(desired), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  expected = narrow;
  return is_done;
}

void thread_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }

}  // namespace refrain::emulator
