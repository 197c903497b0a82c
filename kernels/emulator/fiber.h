// Stacks that are switched by hand, one a device thread. Understood by AddressSanitizer.
#pragma once

#include <cstddef>

#if defined(__SANITIZE_ADDRESS__)
#define REFRAIN_EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define REFRAIN_EMULATOR_ASAN 1
#endif
#endif

namespace refrain::emulator {

class Fiber {
 public:
  Fiber() = default;
  ~Fiber();
  Fiber(Fiber&& other) noexcept;
  Fiber& operator=(Fiber&&) = delete;

  // The next switch to it calls entry, on an empty stack. entry must not return.
  void prepare(void (*entry)());
  // Leaves the running fiber, `from`, for `to`. Returns when somebody switches back. A fiber that ends never comes back.
  static void change(Fiber& from, Fiber& to, bool is_ending);
  // To be called first in entry.
  static void landed(Fiber& now, Fiber& from);

 private:
  void* stack_pointer_ = nullptr;
  char* stack_ = nullptr;          // null: an ordinary thread's own
  void* fake_stack_ = nullptr;     // AddressSanitizer's
  const void* bottom_ = nullptr;   // of an ordinary thread's stack, learned when it is left first
  std::size_t size_ = 0;
  bool has_ended_ = false;         // by itself, when it was left last
};

}  // namespace refrain::emulator
