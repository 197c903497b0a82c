#include <refrain/kernels/emulator/fiber.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sys/mman.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif
#if defined(REFRAIN_EMULATOR_ASAN)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Saves the callee's registers on the stack and goes on with those of another: 31 ns, where swapcontext takes 450.
extern "C" void refrain_emulator_swap(void** save_stack_pointer, void* load_stack_pointer);
asm(R"(
.text
.globl refrain_emulator_swap
.type refrain_emulator_swap,@function
.align 16
refrain_emulator_swap:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size refrain_emulator_swap,.-refrain_emulator_swap
)");
#endif

namespace refrain::emulator {

namespace {

constexpr std::size_t kGuard = 4096;  // never mapped: a stack that overflows stops there
#if defined(REFRAIN_EMULATOR_ASAN)
constexpr std::size_t kStack = 512 << 10;
#else
constexpr std::size_t kStack = 128 << 10;
#endif

char* new_stack() {
  void* stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (stack == MAP_FAILED) {
    std::perror("emulator: no memory for a thread's stack");
    std::abort();
  }
  mprotect(stack, kGuard, PROT_NONE);
  return static_cast<char*>(stack);
}

}  // namespace

Fiber::Fiber(Fiber&& other) noexcept
    : stack_pointer_(other.stack_pointer_), stack_(other.stack_), fake_stack_(other.fake_stack_), bottom_(other.bottom_), size_(other.size_),
      has_ended_(other.has_ended_) {
  other.stack_ = nullptr;
  other.stack_pointer_ = nullptr;
}

Fiber::~Fiber() {
  if (stack_ != nullptr) munmap(stack_, kStack);
#if !defined(__x86_64__)
  delete static_cast<ucontext_t*>(stack_pointer_);
#endif
}

void Fiber::prepare(void (*entry)()) {
  if (stack_ == nullptr) stack_ = new_stack();
  fake_stack_ = nullptr;
#if defined(REFRAIN_EMULATOR_ASAN)
  // What the run before left poisoned: of one that ended, the frames that never return, at the top.
  constexpr std::size_t kLastFrames = 8 << 10;
  const std::size_t bytes = has_ended_ ? kLastFrames : kStack - kGuard;
  __asan_unpoison_memory_region(stack_ + kStack - bytes, bytes);
#endif
#if defined(__x86_64__)
  auto* top = reinterpret_cast<std::uintptr_t*>(reinterpret_cast<std::uintptr_t>(stack_ + kStack) & ~std::uintptr_t(63));
  *--top = 0;  // a return address that is none, and the alignment calls expect
  *--top = reinterpret_cast<std::uintptr_t>(entry);
  for (int saved = 0; saved < 6; ++saved) *--top = 0;
  stack_pointer_ = top;
#else
  if (stack_pointer_ == nullptr) stack_pointer_ = new ucontext_t;
  auto* context = static_cast<ucontext_t*>(stack_pointer_);
  getcontext(context);
  context->uc_stack.ss_sp = stack_;
  context->uc_stack.ss_size = kStack;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
#endif
}

void Fiber::change(Fiber& from, Fiber& to, bool is_ending) {
  from.has_ended_ = is_ending;
#if defined(REFRAIN_EMULATOR_ASAN)
  __sanitizer_start_switch_fiber(is_ending ? nullptr : &from.fake_stack_, to.stack_ != nullptr ? to.stack_ : to.bottom_,
                                 to.stack_ != nullptr ? kStack : to.size_);
#endif
#if defined(__x86_64__)
  refrain_emulator_swap(&from.stack_pointer_, to.stack_pointer_);
#else
  if (from.stack_pointer_ == nullptr) from.stack_pointer_ = new ucontext_t;
  swapcontext(static_cast<ucontext_t*>(from.stack_pointer_), static_cast<ucontext_t*>(to.stack_pointer_));
#endif
}

void Fiber::landed([[maybe_unused]] Fiber& now, [[maybe_unused]] Fiber& from) {
#if defined(REFRAIN_EMULATOR_ASAN)
  const void* bottom = nullptr;
  std::size_t size = 0;
  __sanitizer_finish_switch_fiber(now.fake_stack_, &bottom, &size);
  if (from.stack_ == nullptr) {
    from.bottom_ = bottom;
    from.size_ = size;
  }
#endif
}

}  // namespace refrain::emulator
