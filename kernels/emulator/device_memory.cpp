#include <refrain/kernels/emulator/device_memory.h>
#include <refrain/kernels/emulator/fiber.h>
#include <refrain/kernels/emulator/options.h>
#include <refrain/kernels/emulator/strict.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sys/mman.h>

#if defined(REFRAIN_EMULATOR_ASAN)
#include <sanitizer/asan_interface.h>
#endif

namespace refrain::emulator {

namespace {

using Ranges = std::map<std::size_t, std::size_t>;  // bytes by offset

struct Space {
  std::recursive_mutex mutex;
  char* base = nullptr;
  Ranges reserved, mapped, allocated;
  std::size_t num_mapped_bytes = 0;
  int num_open = 0;  // AccessScopes

  Space() {
    void* memory = mmap(nullptr, kDeviceSpace + kDevicePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
      std::perror("emulator: no addresses for device memory");
      std::abort();
    }
    const auto address = reinterpret_cast<std::size_t>(memory);
    base = static_cast<char*>(memory) + ((address + kDevicePage - 1) / kDevicePage * kDevicePage - address);
    if (options().is_strict) watch_device_accesses(base, kDeviceSpace);
  }

  void protect(int protection) const {
    // Neighbours at once: an arena's pieces are one range.
    for (auto range = mapped.begin(); range != mapped.end();) {
      const std::size_t begin = range->first;
      std::size_t end = begin;
      for (; range != mapped.end() && range->first == end; ++range) end += range->second;
      mprotect(base + begin, end - begin, protection);
    }
  }
};

Space& space() {
  static Space* all = new Space;  // never destroyed: devices may outlive any order of destruction
  return *all;
}

// The one of the ranges that holds all of [offset, offset + bytes), or end().
Ranges::const_iterator holder(const Ranges& ranges, std::size_t offset, std::size_t bytes) {
  auto after = ranges.upper_bound(offset);
  if (after == ranges.begin()) return ranges.end();
  --after;
  return offset + bytes <= after->first + after->second ? after : ranges.end();
}

}  // namespace

char* device_space() { return space().base; }

bool is_device_address(const void* address) { return std::size_t(static_cast<const char*>(address) - space().base) < kDeviceSpace; }

bool is_device_memory(const void* address, std::size_t bytes) {
  Space& s = space();
  const std::lock_guard lock(s.mutex);
  if (!is_device_address(address)) return false;
  auto offset = std::size_t(static_cast<const char*>(address) - s.base);
  const std::size_t end = offset + bytes;
  while (offset < end) {
    const auto range = holder(s.mapped, offset, 1);
    if (range == s.mapped.end()) return false;
    offset = range->first + range->second;
  }
  return true;
}

char* reserve_addresses(std::size_t bytes) {
  Space& s = space();
  const std::lock_guard lock(s.mutex);
  std::size_t offset = kDevicePage;  // first fit, with a page nobody has between neighbours
  for (const auto& [begin, size] : s.reserved) {
    if (offset + bytes + kDevicePage <= begin) break;
    offset = begin + size + kDevicePage;
  }
  if (bytes == 0 || offset + bytes > kDeviceSpace) return nullptr;
  s.reserved[offset] = bytes;
  return s.base + offset;
}

bool free_addresses(char* address, std::size_t bytes) {
  Space& s = space();
  const std::lock_guard lock(s.mutex);
  const auto offset = std::size_t(address - s.base);
  const auto range = s.reserved.find(offset);
  if (range == s.reserved.end() || range->second != bytes) return false;
  const auto inside = s.mapped.lower_bound(offset);
  if (inside != s.mapped.end() && inside->first < offset + bytes) return false;  // memory is still there
  s.reserved.erase(range);
  return true;
}

bool map_memory(char* address, std::size_t bytes) {
  Space& s = space();
  const std::lock_guard lock(s.mutex);
  const auto offset = std::size_t(address - s.base);
  if (holder(s.reserved, offset, bytes) == s.reserved.end() || s.num_mapped_bytes + bytes > options().device_bytes) return false;
  if (mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) return false;
#if defined(REFRAIN_EMULATOR_ASAN)
  __asan_unpoison_memory_region(address, bytes);  // an arena that is gone may have had blocks here
#endif
  std::memset(address, 0xff, bytes);
  s.mapped[offset] = bytes;
  s.num_mapped_bytes += bytes;
  if (options().is_strict && s.num_open == 0) mprotect(address, bytes, PROT_NONE);
  return true;
}

bool unmap_memory(char* address, std::size_t bytes) {
  Space& s = space();
  const std::lock_guard lock(s.mutex);
  const auto range = s.mapped.find(std::size_t(address - s.base));
  if (range == s.mapped.end() || range->second != bytes) return false;
  mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  s.mapped.erase(range);
  s.num_mapped_bytes -= bytes;
  return true;
}

void* allocate_memory(std::size_t bytes) {
  Space& s = space();
  const std::lock_guard lock(s.mutex);
  const std::size_t rounded = (bytes + kDevicePage - 1) / kDevicePage * kDevicePage;
  char* address = reserve_addresses(rounded);
  if (address == nullptr) return nullptr;
  if (!map_memory(address, rounded)) {
    free_addresses(address, rounded);
    return nullptr;
  }
  s.allocated[std::size_t(address - s.base)] = rounded;
  return address;
}

bool free_memory(void* address) {
  Space& s = space();
  const std::lock_guard lock(s.mutex);
  const auto allocation = s.allocated.find(std::size_t(static_cast<char*>(address) - s.base));
  if (allocation == s.allocated.end()) return false;
  const std::size_t bytes = allocation->second;
  s.allocated.erase(allocation);
  return unmap_memory(static_cast<char*>(address), bytes) && free_addresses(static_cast<char*>(address), bytes);
}

std::size_t free_device_bytes() {
  Space& s = space();
  const std::lock_guard lock(s.mutex);
  return options().device_bytes - s.num_mapped_bytes;
}

AccessScope::AccessScope() {
  if (!options().is_strict) return;
  Space& s = space();
  const std::lock_guard lock(s.mutex);
  if (s.num_open++ == 0) s.protect(PROT_READ | PROT_WRITE);
}

AccessScope::~AccessScope() {
  if (!options().is_strict) return;
  Space& s = space();
  const std::lock_guard lock(s.mutex);
  if (--s.num_open == 0) {
    s.protect(PROT_NONE);
    watch_device_accesses(s.base, kDeviceSpace);
  }
}

}  // namespace refrain::emulator
