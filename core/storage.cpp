#include <refrain/core/check.h>
#include <refrain/core/storage.h>

#include <atomic>

#if defined(__SANITIZE_ADDRESS__)
#define REFRAIN_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define REFRAIN_ASAN 1
#endif
#endif
#ifdef REFRAIN_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace refrain {

namespace {

// Under AddressSanitizer bytes that no tensor owns must not be touched, rounding included.
void mark_owned([[maybe_unused]] std::byte* data, [[maybe_unused]] std::int64_t bytes) {
#ifdef REFRAIN_ASAN
  if (data == nullptr || bytes == 0) return;
  ASAN_POISON_MEMORY_REGION(data, std::size_t(Arena::rounded(bytes)));
  ASAN_UNPOISON_MEMORY_REGION(data, std::size_t(bytes));
#endif
}

void mark_free([[maybe_unused]] std::byte* data, [[maybe_unused]] std::int64_t bytes) {
#ifdef REFRAIN_ASAN
  if (data != nullptr && bytes != 0) ASAN_POISON_MEMORY_REGION(data, std::size_t(Arena::rounded(bytes)));
#endif
}

std::atomic<std::uint64_t> birth_counter{0};

}  // namespace

std::uint64_t Storage::next_birth() { return birth_counter.load(std::memory_order_relaxed); }

std::shared_ptr<Storage> Storage::allocate(const Device& device, std::int64_t bytes) {
  const MemoryTag tag = MemoryTag::current();
  detail::DeviceState& state = device.state();
  std::int64_t offset = 0;
  {
    std::lock_guard lock(state.mutex);
    offset = state.arena.allocate(bytes);
    if (offset >= 0) state.ledger.add(tag, bytes);
    else {
      fail<OutOfMemory>("out of memory on ", device, ": ", tag.op.empty() ? "a tensor" : tag.op, " in module '", tag.module->text,
                        "' asked for ", bytes, " bytes (", name_of(tag.kind), ", ", name_of(tag.phase), "); ", state.arena.live_bytes(),
                        " bytes are held, ", state.arena.reserved_bytes(), " reserved, the limit is ", state.arena.limit());
    }
  }
  return std::make_shared<Storage>(device, bytes, offset, tag);
}

Storage::Storage(const Device& device, std::int64_t bytes, std::int64_t offset, const MemoryTag& tag)
    : device_(device), bytes_(bytes), offset_(offset), data_(nullptr), tag_(tag), birth_(birth_counter.fetch_add(1, std::memory_order_relaxed)) {
  if (std::byte* base = device.state().range->base()) data_ = base + offset;
  mark_owned(data_, bytes_);
}

Storage::~Storage() {
  mark_free(data_, bytes_);
  detail::DeviceState& state = device_.state();
  std::lock_guard lock(state.mutex);
  state.ledger.remove(tag_, bytes_);
  state.arena.release(offset_, bytes_);
}

void Storage::set_kind(MemoryKind kind) {
  detail::DeviceState& state = device_.state();
  std::lock_guard lock(state.mutex);
  state.ledger.retag(tag_, kind, bytes_);
}

void Storage::add_saved() {
  if (num_saved_++ == 0 && tag_.kind == MemoryKind::temporary) set_kind(MemoryKind::saved);
}

void Storage::remove_saved() {
  invariant(num_saved_ > 0, "storage released more often than saved");
  if (--num_saved_ == 0 && tag_.kind == MemoryKind::saved) set_kind(MemoryKind::temporary);
}

}  // namespace refrain
