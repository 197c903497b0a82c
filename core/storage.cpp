#include <refrain/core/check.h>
#include <refrain/core/memory/placement.h>
#include <refrain/core/memory/timeline_recorder.h>
#include <refrain/core/storage.h>

#include <atomic>

// There in every program that AddressSanitizer is linked into, such as one whose emulated CUDA kernels alone are built with it.
extern "C" {
__attribute__((weak)) void __asan_poison_memory_region(const volatile void*, std::size_t);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void*, std::size_t);
}

namespace refrain {

namespace {

// Under AddressSanitizer bytes that no tensor owns must not be touched, rounding included.
void mark_owned(std::byte* data, std::int64_t bytes) {
  if (__asan_poison_memory_region == nullptr || data == nullptr || bytes == 0) return;
  __asan_poison_memory_region(data, std::size_t(Arena::rounded(bytes)));
  __asan_unpoison_memory_region(data, std::size_t(bytes));
}

void mark_free(std::byte* data, std::int64_t bytes) {
  if (__asan_poison_memory_region == nullptr || data == nullptr || bytes == 0) return;
  __asan_poison_memory_region(data, std::size_t(Arena::rounded(bytes)));
}

std::atomic<std::uint64_t> birth_counter{0};

// Offset of a block; -1 where there is no room.
std::int64_t place(detail::DeviceState& state, const MemoryTag& tag, std::int64_t bytes) {
  if (state.placement && bytes > 0) {
    const std::int64_t wanted = state.placement->offset_for(bytes, tag);
    if (wanted >= 0 && state.arena.allocate_at(wanted, bytes)) return wanted;
  }
  return state.arena.allocate(bytes);
}

OutOfMemory out_of_memory(const Device& device, const MemoryTag& tag, std::int64_t bytes) {
  const detail::DeviceState& state = device.state();
  const Arena& arena = state.arena;
  std::string kinds;
  for (int kind = 0; kind < kNumMemoryKinds; ++kind) {
    const std::int64_t of_kind = state.ledger.live_bytes(MemoryKind(kind));
    if (of_kind > 0) kinds += concat(kinds.empty() ? "" : ", ", name_of(MemoryKind(kind)), " ", of_kind);
  }
  OutOfMemory error(concat("out of memory on ", device, ": ", tag.op.empty() ? "a tensor" : tag.op, " in module '", tag.module->text, "' asked for ",
                           bytes, " bytes (", name_of(tag.kind), ", ", name_of(tag.phase), "); ", arena.live_bytes(), " bytes are held",
                           kinds.empty() ? "" : " (", kinds, kinds.empty() ? "" : ")", ", ", arena.reserved_bytes(),
                           " reserved, the largest hole has ", arena.largest_hole(), ", the limit is ", arena.limit(),
                           state.limit_reason.empty() ? "" : concat(" (", state.limit_reason, ")")));
  error.requested = bytes;
  error.held = arena.live_bytes();
  error.reserved = arena.reserved_bytes();
  error.largest_hole = arena.largest_hole();
  error.limit = arena.limit();
  return error;
}

}  // namespace

std::uint64_t Storage::next_birth() { return birth_counter.load(std::memory_order_relaxed); }

std::shared_ptr<Storage> Storage::allocate(const Device& device, std::int64_t bytes) { return std::make_shared<Storage>(device, bytes); }

Storage::Storage(const Device& device, std::int64_t bytes) : device_(device), bytes_(bytes), tag_(MemoryTag::current()) {
  take_bytes();
  birth_ = block_;
}

Storage::~Storage() {
  if (is_present_) release_bytes();
}

void Storage::evict() {
  invariant(is_present_, "evict: the bytes are away already");
  release_bytes();
}

void Storage::restore(MemoryKind kind) {
  invariant(!is_present_, "restore: the bytes are here already");
  const ModulePath* module = tag_.module;
  tag_ = MemoryTag::current();
  tag_.module = module;
  tag_.kind = kind;
  take_bytes();
}

void Storage::take_bytes() {
  detail::DeviceState& state = device_.state();
  std::lock_guard lock(state.mutex);
  offset_ = place(state, tag_, bytes_);
  if (offset_ < 0) throw out_of_memory(device_, tag_, bytes_);
  if (!state.range->commit(state.arena.reserved_bytes())) {
    OutOfMemory error = out_of_memory(device_, tag_, bytes_);
    state.arena.release(offset_, bytes_);
    state.arena.trim();  // the hole that is left must not be asked for again
    throw error;
  }
  bool is_booked = false;
  try {
    state.ledger.add(tag_, bytes_);
    is_booked = true;
    block_ = birth_counter.fetch_add(1, std::memory_order_relaxed);
    if (state.timeline) {
      const bool is_peak = bytes_ > 0 && state.ledger.is_at_peak();
      state.timeline->add({.id = block_, .bytes = bytes_, .offset = offset_, .tag = tag_}, is_peak);
    }
  } catch (...) {  // the books themselves need memory
    if (is_booked) state.ledger.remove(tag_, bytes_);
    state.arena.release(offset_, bytes_);
    throw;
  }
  older_ = state.newest;
  younger_ = nullptr;
  if (older_ != nullptr) older_->younger_ = this;
  state.newest = this;
  if (std::byte* base = state.range->base()) data_ = base + offset_;
  is_present_ = true;
  mark_owned(data_, bytes_);
}

void Storage::release_bytes() {
  detail::DeviceState& state = device_.state();
  mark_free(data_, bytes_);
  std::lock_guard lock(state.mutex);
  if (state.timeline) state.timeline->remove(block_);
  (younger_ != nullptr ? younger_->older_ : state.newest) = older_;
  if (older_ != nullptr) older_->younger_ = younger_;
  state.ledger.remove(tag_, bytes_);
  state.arena.release(offset_, bytes_);
  data_ = nullptr;
  is_present_ = false;
}

void Storage::set_kind(MemoryKind kind) {
  if (tag_.kind == kind) return;
  if (!is_present_) {
    tag_.kind = kind;
    return;
  }
  detail::DeviceState& state = device_.state();
  std::lock_guard lock(state.mutex);
  state.ledger.retag(tag_, kind, bytes_);
  if (state.timeline) state.timeline->set_kind(birth_, kind);
}

void Storage::add_saved() {
  if (num_saved_++ == 0 && tag_.kind == MemoryKind::temporary) set_kind(MemoryKind::saved);
}

void Storage::remove_saved() {
  invariant(num_saved_ > 0, "storage released more often than saved");
  if (--num_saved_ == 0 && tag_.kind == MemoryKind::saved) set_kind(MemoryKind::temporary);
}

}  // namespace refrain
