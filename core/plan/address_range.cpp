// Addresses without memory: the same arena code hands out the same offsets as on the CPU.
#include <refrain/core/device.h>

namespace refrain::detail {

namespace {

class EmptyRange : public AddressRange {
 public:
  std::byte* base() const override { return nullptr; }
  std::int64_t capacity() const override { return std::int64_t{1} << 50; }
};

}  // namespace

std::unique_ptr<AddressRange> reserve_plan_range() { return std::make_unique<EmptyRange>(); }

}  // namespace refrain::detail
