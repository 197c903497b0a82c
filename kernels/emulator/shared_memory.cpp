#include <refrain/kernels/emulator/block.h>
#include <refrain/kernels/emulator/shared_memory.h>

#include <cstdint>
#include <cstring>
#include <new>

#if defined(REFRAIN_EMULATOR_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace refrain::emulator {

#if defined(REFRAIN_EMULATOR_ASAN)
const bool kFindsOutOfBounds = true;
#else
const bool kFindsOutOfBounds = false;
#endif

namespace {

constexpr std::size_t kRedZone = 32;
constexpr int kPoison = 0xff;  // NaN in every floating dtype

void allow([[maybe_unused]] const char* address, [[maybe_unused]] std::size_t bytes) {
#if defined(REFRAIN_EMULATOR_ASAN)
  __asan_unpoison_memory_region(address, bytes);
#endif
}
void forbid([[maybe_unused]] const char* address, [[maybe_unused]] std::size_t bytes) {
#if defined(REFRAIN_EMULATOR_ASAN)
  __asan_poison_memory_region(address, bytes);
#endif
}

}  // namespace

SharedMemory::~SharedMemory() {
  if (base_ == nullptr) return;
  allow(base_, kBytes);
  ::operator delete[](base_, std::align_val_t(128));
}

void SharedMemory::start(std::size_t dynamic_bytes) {
  if (base_ == nullptr) base_ = static_cast<char*>(::operator new[](kBytes, std::align_val_t(128)));
  arrays_.clear();
  static_end_ = 0;
  dynamic_bytes_ = dynamic_bytes;
  forbid(base_, kBytes);
  allow(base_ + kStatic, dynamic_bytes);
  if (dynamic_bytes > 0) std::memset(base_ + kStatic, kPoison, dynamic_bytes);
}

void* SharedMemory::static_array(const void* key, std::size_t bytes, std::size_t alignment, const char* name) {
  for (const Array& array : arrays_)
    if (array.key == key) return base_ + array.offset;
  const std::size_t offset = (static_end_ + alignment - 1) / alignment * alignment;
  if (offset + bytes > kMaxStatic) throw Error("static shared memory over 48 KiB");
  arrays_.push_back({key, offset, bytes, name});
  static_end_ = offset + bytes + kRedZone;
  allow(base_ + offset, bytes);
  std::memset(base_ + offset, kPoison, bytes);
  return base_ + offset;
}

void SharedMemory::check(const void* address, std::size_t bytes, const char* what) const {
  const auto offset = std::size_t(static_cast<const char*>(address) - base_);
  bool is_inside = offset >= kStatic && offset < kBytes && offset + bytes <= kStatic + dynamic_bytes_;
  for (const Array& array : arrays_) is_inside = is_inside || (offset >= array.offset && offset + bytes <= array.offset + array.bytes);
  if (!is_inside) throw Error(std::string(what) + ": an address outside of the block's shared memory");
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) throw Error(std::string(what) + ": an address that is not aligned");
}

std::string SharedMemory::describe(std::size_t offset) const {
  if (offset >= kStatic) return "dynamic+" + std::to_string(offset - kStatic);
  for (const Array& array : arrays_)
    if (offset >= array.offset && offset < array.offset + array.bytes) return std::string(array.name) + "+" + std::to_string(offset - array.offset);
  return "nothing";
}

void* static_shared(const void* key, std::size_t bytes, std::size_t alignment, const char* name) {
  return Block::current()->shared().static_array(key, bytes, alignment, name);
}

void* dynamic_shared() { return Block::current()->shared().dynamic(); }

}  // namespace refrain::emulator
