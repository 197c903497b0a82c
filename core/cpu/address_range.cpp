// One long anonymous mapping, backed by the system page by page as it is touched. Huge pages are asked for because
// fresh 4 KiB pages cost about 2 us each, more than the arithmetic of a large elementwise op.
#include <refrain/core/check.h>
#include <refrain/core/cpu/strided.h>
#include <refrain/core/device.h>

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

extern "C" __attribute__((weak)) void __asan_unpoison_memory_region(const volatile void*, std::size_t);

namespace refrain::detail {

namespace {

constexpr std::int64_t kHugePage = std::int64_t{2} << 20;

class MappedRange : public AddressRange {
 public:
  MappedRange() {
    // Twice the machine's memory leaves room for holes; smaller when the process may not map that much. Where address space
    // is limited a quarter is left for threads, libraries and files.
    capacity_ = std::int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) * 2;
    for (const auto resource : {RLIMIT_AS, RLIMIT_DATA}) {
      rlimit limit{};
      if (getrlimit(resource, &limit) == 0 && limit.rlim_cur < rlim_t(capacity_)) capacity_ = std::int64_t(limit.rlim_cur / 4 * 3);
    }
    capacity_ = capacity_ / kHugePage * kHugePage;
    for (; capacity_ >= 16 * kHugePage; capacity_ = capacity_ / 2 / kHugePage * kHugePage) {
      mapped_ = mmap(nullptr, std::size_t(capacity_ + kHugePage), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (mapped_ != MAP_FAILED) break;
    }
    check<OutOfMemory>(mapped_ != MAP_FAILED, "cannot map an address range for tensors: ", std::strerror(errno));
    const auto address = reinterpret_cast<std::uintptr_t>(mapped_);
    base_ = reinterpret_cast<std::byte*>((address + std::uintptr_t(kHugePage) - 1) / std::uintptr_t(kHugePage) * std::uintptr_t(kHugePage));
    madvise(base_, std::size_t(capacity_), MADV_HUGEPAGE);  // a wish: systems without huge pages ignore it
  }
  ~MappedRange() override {
    // The system maps other things here next, a thread's stack say, which AddressSanitizer would hold for tensors that ended.
    if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(base_, std::size_t(used_));
    munmap(mapped_, std::size_t(capacity_ + kHugePage));
  }
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

  std::byte* base() const override { return base_; }
  std::int64_t capacity() const override { return capacity_; }
  bool commit(std::int64_t end) override {  // the system gives pages as they are touched
    used_ = std::max(used_, end);
    return true;
  }
  void read(std::byte* host, const std::byte* from, std::int64_t bytes) const override { std::memcpy(host, from, std::size_t(bytes)); }
  void write(std::byte* to, const std::byte* host, std::int64_t bytes) const override { std::memcpy(to, host, std::size_t(bytes)); }
  void copy(const Shape& shape, int size, std::byte* to, const Strides& to_strides, const std::byte* from,
            const Strides& from_strides) const override {
    copy_on_host(shape, size, to, to_strides, from, from_strides);
  }
  void fill(const Shape& shape, int size, std::byte* to, const Strides& strides, std::uint64_t pattern) const override {
    fill_on_host(shape, size, to, strides, pattern);
  }

 private:
  void* mapped_ = MAP_FAILED;
  std::byte* base_ = nullptr;
  std::int64_t capacity_ = 0, used_ = 0;
};

}  // namespace

std::unique_ptr<AddressRange> reserve_cpu_range() { return std::make_unique<MappedRange>(); }

}  // namespace refrain::detail
