#include <refrain/core/check.h>
#include <refrain/core/device.h>

namespace refrain {

namespace detail {

DeviceState::DeviceState(DeviceKind device_kind, std::unique_ptr<AddressRange> address_range)
    : kind(device_kind), range(std::move(address_range)), arena(range->capacity()) {}

}  // namespace detail

Device Device::cpu() {
  // Never destroyed: tensors in static storage may outlive any order of destruction.
  static const Device* device = new Device(new_cpu());
  return *device;
}

Device Device::new_cpu() {
  return Device(std::make_shared<detail::DeviceState>(DeviceKind::cpu, detail::reserve_cpu_range()));
}

Device Device::plan() {
  return Device(std::make_shared<detail::DeviceState>(DeviceKind::plan, detail::reserve_plan_range()));
}

void Device::set_memory_limit(std::int64_t bytes) const {
  check(bytes > 0, "memory limit must be positive, got ", bytes);
  std::lock_guard lock(state_->mutex);
  state_->arena.set_limit(bytes);
}

Ledger Device::ledger() const {
  std::lock_guard lock(state_->mutex);
  return state_->ledger;
}

std::int64_t Device::live_bytes() const {
  std::lock_guard lock(state_->mutex);
  return state_->ledger.live_bytes();
}

std::int64_t Device::live_bytes(MemoryKind kind) const {
  std::lock_guard lock(state_->mutex);
  return state_->ledger.live_bytes(kind);
}

std::int64_t Device::live_count() const {
  std::lock_guard lock(state_->mutex);
  return state_->ledger.live_count();
}

std::int64_t Device::peak_bytes() const {
  std::lock_guard lock(state_->mutex);
  return state_->ledger.peak_bytes();
}

std::int64_t Device::reserved_bytes() const {
  std::lock_guard lock(state_->mutex);
  return state_->arena.reserved_bytes();
}

void Device::reset_peak() const {
  std::lock_guard lock(state_->mutex);
  state_->ledger.reset_peak();
}

std::ostream& operator<<(std::ostream& out, const Device& device) {
  return out << (device.kind() == DeviceKind::cpu ? "cpu" : "plan(cpu)");
}

}  // namespace refrain
