// Addresses without memory: the same arena code hands out the same offsets as on the CPU.
#include <refrain/core/device.h>

namespace refrain::detail {

namespace {

class EmptyRange : public AddressRange {
 public:
  std::byte* base() const override { return nullptr; }
  std::int64_t capacity() const override { return std::int64_t{1} << 50; }
  bool commit(std::int64_t) override { return true; }
  // Nobody has an address to give to these.
  void read(std::byte*, const std::byte*, std::int64_t) const override { refuse(); }
  void write(std::byte*, const std::byte*, std::int64_t) const override { refuse(); }
  void copy(const Shape&, int, std::byte*, const Strides&, const std::byte*, const Strides&) const override { refuse(); }
  void fill(const Shape&, int, std::byte*, const Strides&, std::uint64_t) const override { refuse(); }

 private:
  [[noreturn]] static void refuse() { fail<InternalError>("internal error: a plan device was asked for bytes"); }
};

}  // namespace

std::unique_ptr<AddressRange> reserve_plan_range() { return std::make_unique<EmptyRange>(); }

}  // namespace refrain::detail
