// Where the blocks of an arena are to lie, when somebody knows better than best fit: a layout packed beforehand.
#pragma once

#include <refrain/core/memory/ledger.h>

#include <cstdint>
#include <string_view>

namespace refrain {

// Asked under the device's lock.
class Placement {
 public:
  virtual ~Placement() = default;
  // Once for every allocation of more than 0 bytes, in order: the offset it should have; -1: wherever it fits best. Where that
  // range is not free the arena chooses.
  virtual std::int64_t offset_for(std::int64_t bytes, const MemoryTag& tag) = 0;
  // A part of the program begins that allocates the same each time it is called that.
  virtual void begin_section(std::string_view key) = 0;
};

}  // namespace refrain
