// Where the blocks of an arena are to lie, when somebody knows better than best fit: a layout packed beforehand.
#pragma once

#include <refrain/core/memory/ledger.h>

#include <cstdint>
#include <string_view>

namespace refrain {

// Asked under the device's lock, once for every allocation of more than 0 bytes, in order.
class Placement {
 public:
  virtual ~Placement() = default;
  // The offset the block should have; -1: wherever it fits best. Where the range is not free the arena chooses.
  virtual std::int64_t offset_for(std::int64_t bytes, const MemoryTag& tag) = 0;
  // Device::mark() was called.
  virtual void begin_section(std::string_view label) = 0;
};

}  // namespace refrain
