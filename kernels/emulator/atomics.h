// Atomic functions of device code, on any integer or floating type of 4 or 8 bytes.
#pragma once

#include <refrain/kernels/emulator/thread.h>

#include <cstring>
#include <type_traits>

namespace refrain::emulator {

// Out of line, so that the race detector's instrumentation of kernels does not see them as plain accesses.
std::uint64_t atomic_load(const void* address, std::size_t bytes);
bool atomic_compare_exchange(void* address, std::uint64_t& expected, std::uint64_t desired, std::size_t bytes);  // notes the access
void thread_fence();

template <class T, class F>
T atomic_update(T* address, F&& next) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  std::uint64_t before = atomic_load(address, sizeof(T));
  for (;;) {
    T old;
    std::memcpy(&old, &before, sizeof(T));
    const T value = next(old);
    std::uint64_t after = 0;
    std::memcpy(&after, &value, sizeof(T));
    if (atomic_compare_exchange(address, before, after, sizeof(T))) return old;
  }
}

}  // namespace refrain::emulator

#define REFRAIN_EMULATOR_ATOMIC(name, expression)                                                      \
  template <class T>                                                                                   \
  T name(T* address, std::type_identity_t<T> value) {                                                  \
    return refrain::emulator::atomic_update(address, [&](T old) -> T { return expression; });          \
  }
REFRAIN_EMULATOR_ATOMIC(atomicAdd, T(old + value))
REFRAIN_EMULATOR_ATOMIC(atomicSub, T(old - value))
REFRAIN_EMULATOR_ATOMIC(atomicExch, (static_cast<void>(old), value))
REFRAIN_EMULATOR_ATOMIC(atomicMin, old < value ? old : value)
REFRAIN_EMULATOR_ATOMIC(atomicMax, old > value ? old : value)
REFRAIN_EMULATOR_ATOMIC(atomicAnd, T(old & value))
REFRAIN_EMULATOR_ATOMIC(atomicOr, T(old | value))
REFRAIN_EMULATOR_ATOMIC(atomicXor, T(old ^ value))
REFRAIN_EMULATOR_ATOMIC(atomicInc, old >= value ? T(0) : T(old + 1))
#undef REFRAIN_EMULATOR_ATOMIC
template <class T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> desired) {
  return refrain::emulator::atomic_update(address, [&](T old) -> T { return std::memcmp(&old, &expected, sizeof(T)) == 0 ? desired : old; });
}

inline void __threadfence() { refrain::emulator::thread_fence(); }
inline void __threadfence_block() { refrain::emulator::thread_fence(); }
inline void __threadfence_system() { refrain::emulator::thread_fence(); }
