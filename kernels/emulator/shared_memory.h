// A block's shared memory: filled with NaN when a block starts, and under AddressSanitizer out of bounds beside each array.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace refrain::emulator {

class SharedMemory {
 public:
  static constexpr std::size_t kStatic = 64 << 10;                    // static arrays lie below, the dynamic one above
  static constexpr std::size_t kBytes = kStatic + (228 << 10) + 128;  // a few bytes behind the largest dynamic one stay out of bounds
  static constexpr std::size_t kMaxStatic = 48 << 10;

  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;

  // Forgets the arrays of the block before.
  void start(std::size_t dynamic_bytes);
  // The block's array that belongs to `key`, a place in the source.
  void* static_array(const void* key, std::size_t bytes, std::size_t alignment, const char* name);
  void* dynamic() const { return base_ + kStatic; }

  const char* base() const { return base_; }
  bool contains(const void* address) const { return std::size_t(static_cast<const char*>(address) - base_) < kBytes; }
  // Throws unless the bytes are within an array and aligned to their number.
  void check(const void* address, std::size_t bytes, const char* what) const;
  std::string describe(std::size_t offset) const;

 private:
  struct Array {
    const void* key;
    std::size_t offset, bytes;
    const char* name;
  };
  char* base_ = nullptr;
  std::vector<Array> arrays_;
  std::size_t static_end_ = 0, dynamic_bytes_ = 0;
};

// For REFRAIN_SHARED and REFRAIN_DYNAMIC_SHARED.
void* static_shared(const void* key, std::size_t bytes, std::size_t alignment, const char* name);
void* dynamic_shared();

// Whether accesses beside arrays and blocks are found: kernels and emulator are compiled for AddressSanitizer.
extern const bool kFindsOutOfBounds;

}  // namespace refrain::emulator
