// The functions that code compiled with -fsanitize=thread calls, in place of the sanitizer's library, which is not linked.
#include <refrain/kernels/emulator/race_access.h>
#include <refrain/kernels/emulator/thread.h>

#include <cstring>

extern "C" char __executable_start;

namespace {

[[gnu::always_inline]] inline void tell(const void* address, std::size_t bytes, bool is_write, const void* place) {
  using namespace refrain::emulator;
  if (current_thread == nullptr) return;
  note_access(address, {bytes, is_write, false, std::uint32_t(static_cast<const char*>(place) - &__executable_start)}, current_thread->linear);
}

}  // namespace

#define REFRAIN_HERE __builtin_return_address(0)
#define REFRAIN_ACCESSES(bytes)                                                                       \
  void __tsan_read##bytes(void* address) { tell(address, bytes, false, REFRAIN_HERE); }               \
  void __tsan_write##bytes(void* address) { tell(address, bytes, true, REFRAIN_HERE); }               \
  void __tsan_unaligned_read##bytes(void* address) { tell(address, bytes, false, REFRAIN_HERE); }     \
  void __tsan_unaligned_write##bytes(void* address) { tell(address, bytes, true, REFRAIN_HERE); }     \
  void __tsan_volatile_read##bytes(void* address) { tell(address, bytes, false, REFRAIN_HERE); }      \
  void __tsan_volatile_write##bytes(void* address) { tell(address, bytes, true, REFRAIN_HERE); }      \
  void __tsan_unaligned_volatile_read##bytes(void* address) { tell(address, bytes, false, REFRAIN_HERE); } \
  void __tsan_unaligned_volatile_write##bytes(void* address) { tell(address, bytes, true, REFRAIN_HERE); } \
  void __tsan_read_write##bytes(void* address) {                                                      \
    tell(address, bytes, false, REFRAIN_HERE);                                                        \
    tell(address, bytes, true, REFRAIN_HERE);                                                         \
  }

// What initialisers of function-local statics use; kernels have no atomics but those of atomics.h.
#define REFRAIN_ATOMICS(bits, T)                                                                                             \
  T __tsan_atomic##bits##_load(const volatile T* address, int) { return __atomic_load_n(address, __ATOMIC_SEQ_CST); }        \
  void __tsan_atomic##bits##_store(volatile T* address, T value, int) { __atomic_store_n(address, value, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_exchange(volatile T* address, T value, int) { return __atomic_exchange_n(address, value, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_add(volatile T* address, T value, int) { return __atomic_fetch_add(address, value, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_sub(volatile T* address, T value, int) { return __atomic_fetch_sub(address, value, __ATOMIC_SEQ_CST); } \
  T __tsan_atomic##bits##_fetch_or(volatile T* address, T value, int) { return __atomic_fetch_or(address, value, __ATOMIC_SEQ_CST); } \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* address, T* expected, T value, int, int) {                    \
    return __atomic_compare_exchange_n(address, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                 \
  }                                                                                                                          \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* address, T* expected, T value, int, int) {                      \
    return __atomic_compare_exchange_n(address, expected, value, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                  \
  }

extern "C" {
REFRAIN_ACCESSES(1)
REFRAIN_ACCESSES(2)
REFRAIN_ACCESSES(4)
REFRAIN_ACCESSES(8)
REFRAIN_ACCESSES(16)
REFRAIN_ATOMICS(8, std::uint8_t)
REFRAIN_ATOMICS(16, std::uint16_t)
REFRAIN_ATOMICS(32, std::uint32_t)
REFRAIN_ATOMICS(64, std::uint64_t)

void __tsan_read_range(void* address, std::size_t bytes) { tell(address, bytes, false, REFRAIN_HERE); }
void __tsan_write_range(void* address, std::size_t bytes) { tell(address, bytes, true, REFRAIN_HERE); }
void* __tsan_memcpy(void* to, const void* from, std::size_t bytes) {
  tell(from, bytes, false, REFRAIN_HERE);
  tell(to, bytes, true, REFRAIN_HERE);
  return std::memcpy(to, from, bytes);
}
void* __tsan_memmove(void* to, const void* from, std::size_t bytes) {
  tell(from, bytes, false, REFRAIN_HERE);
  tell(to, bytes, true, REFRAIN_HERE);
  return std::memmove(to, from, bytes);
}
void* __tsan_memset(void* to, int value, std::size_t bytes) {
  tell(to, bytes, true, REFRAIN_HERE);
  return std::memset(to, value, bytes);
}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_atomic_thread_fence(int) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
}
