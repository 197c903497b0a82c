// The emulated devices' memory: parts of one large range of addresses that nothing else of the process uses, so that an address
// tells what it is. New memory is filled with 0xFF.
#pragma once

#include <cstddef>

namespace refrain::emulator {

inline constexpr std::size_t kDeviceSpace = std::size_t(1) << 39;  // addresses
inline constexpr std::size_t kDevicePage = 2 << 20;                // what driver functions deal in

// Null until the first use.
char* device_space();
bool is_device_address(const void* address);
// Whether all bytes are there.
bool is_device_memory(const void* address, std::size_t bytes);

// Addresses without memory; null when there are none left. `bytes` is a multiple of the page.
char* reserve_addresses(std::size_t bytes);
bool free_addresses(char* address, std::size_t bytes);
// Memory behind addresses; false where the device has none left.
bool map_memory(char* address, std::size_t bytes);
bool unmap_memory(char* address, std::size_t bytes);

// As cudaMalloc: addresses and memory. Null when it does not fit.
void* allocate_memory(std::size_t bytes);
bool free_memory(void* address);

std::size_t free_device_bytes();

// While one lives, in strict mode, device memory can be read and written; otherwise an access ends the process with a message.
class AccessScope {
 public:
  AccessScope();
  ~AccessScope();
  AccessScope(const AccessScope&) = delete;
};

}  // namespace refrain::emulator
