// Says what happened when the host follows a device address.
#pragma once

#include <cstddef>

namespace refrain::emulator {

// Accesses to these addresses that fail are explained on stderr before whoever handled such signals before does so. Cheap to
// call again, which a test framework that sets its own handler makes necessary.
void watch_device_accesses(const char* base, std::size_t bytes);

}  // namespace refrain::emulator
