#include <refrain/core/check.h>
#include <refrain/core/device.h>
#include <refrain/core/memory/placement.h>
#include <refrain/core/memory/timeline_recorder.h>
#include <refrain/core/storage.h>

#include <algorithm>
#include <map>

namespace refrain {

std::string_view name_of(DeviceKind kind) { return kind == DeviceKind::cpu ? "cpu" : kind == DeviceKind::cuda ? "cuda" : "plan"; }

namespace detail {

DeviceState::DeviceState(DeviceKind device_kind, DeviceKind device_target, std::unique_ptr<AddressRange> address_range, int device_index)
    : kind(device_kind), target(device_target), index(device_index), range(std::move(address_range)), arena(range->capacity()) {}

DeviceState::~DeviceState() = default;

}  // namespace detail

Device Device::cpu() {
  // Never destroyed: tensors in static storage may outlive any order of destruction.
  static const Device* device = new Device(new_cpu());
  return *device;
}

Device Device::new_cpu() {
  return Device(std::make_shared<detail::DeviceState>(DeviceKind::cpu, DeviceKind::cpu, detail::reserve_cpu_range()));
}

Device Device::cuda(int index) {
  static std::mutex mutex;
  static std::map<int, Device>* devices = new std::map<int, Device>();  // never destroyed, as the CPU's
  const std::lock_guard lock(mutex);
  const auto known = devices->find(index);
  return known != devices->end() ? known->second : devices->emplace(index, new_cuda(index)).first->second;
}

Device Device::new_cuda(int index) {
  return Device(std::make_shared<detail::DeviceState>(DeviceKind::cuda, DeviceKind::cuda, detail::reserve_cuda_range(index), index));
}

std::string Device::cuda_problem() { return detail::cuda_problem(); }

Device Device::plan(DeviceKind of) {
  check(of != DeviceKind::plan, "plan: expected a plan of cpu or cuda");
  return Device(std::make_shared<detail::DeviceState>(DeviceKind::plan, of, detail::reserve_plan_range()));
}

void Device::set_memory_limit(std::int64_t bytes, const std::string& reason) const {
  check(bytes > 0, "memory limit must be positive, got ", bytes);
  std::lock_guard lock(state_->mutex);
  state_->arena.set_limit(bytes);
  state_->limit_reason = reason;
}

std::int64_t Device::memory_limit() const {
  std::lock_guard lock(state_->mutex);
  return state_->arena.limit();
}

std::string Device::memory_limit_reason() const {
  std::lock_guard lock(state_->mutex);
  return state_->limit_reason;
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

void Device::trim() const {
  std::lock_guard lock(state_->mutex);
  state_->arena.trim();
}

void Device::reset_peak() const {
  std::lock_guard lock(state_->mutex);
  state_->ledger.reset_peak();
  if (state_->timeline) state_->timeline->reset_peak();
}

void Device::start_timeline(const TimelineOptions& options) const {
  check(options.keep_marks >= 0, "start_timeline: expected to keep at least 0 marks, got ", options.keep_marks);
  std::lock_guard lock(state_->mutex);
  std::vector<MemoryBlock> alive;
  for (const Storage* storage = state_->newest; storage != nullptr; storage = storage->older()) {
    const MemoryTag& tag = storage->tag();
    alive.push_back({.id = storage->block(), .bytes = storage->bytes(), .offset = storage->offset(), .tag = tag, .first_kind = tag.kind});
  }
  std::reverse(alive.begin(), alive.end());
  const bool is_at_peak = state_->ledger.is_at_peak() || state_->ledger.peak_bytes() == 0;
  state_->timeline = std::make_unique<detail::TimelineRecorder>(options, std::move(alive), is_at_peak);
}

void Device::stop_timeline() const {
  std::lock_guard lock(state_->mutex);
  state_->timeline.reset();
}

bool Device::has_timeline() const {
  std::lock_guard lock(state_->mutex);
  return state_->timeline != nullptr;
}

Timeline Device::timeline() const {
  std::lock_guard lock(state_->mutex);
  check(state_->timeline != nullptr, "timeline: none runs on this device; start_timeline() begins one");
  return state_->timeline->timeline();
}

void Device::mark(std::string_view label) const {
  std::lock_guard lock(state_->mutex);
  if (state_->timeline) state_->timeline->mark(label);
}

void Device::set_placement(std::unique_ptr<Placement> placement) const {
  std::lock_guard lock(state_->mutex);
  state_->placement = std::move(placement);
}

Device Device::host() const {
  std::lock_guard lock(state_->mutex);
  if (!state_->host) {
    const Device made = has_bytes() ? new_cpu() : plan(DeviceKind::cpu);
    state_->host = made.state_;
    state_->host->is_host_of_another = true;
  }
  return Device(state_->host);
}

bool Device::has_host() const {
  std::lock_guard lock(state_->mutex);
  return state_->host != nullptr;
}

std::ostream& operator<<(std::ostream& out, const Device& device) {
  if (device.state().is_host_of_another) return out << (device.has_bytes() ? "host" : "plan(host)");
  switch (device.kind()) {
    case DeviceKind::plan: return out << "plan(" << name_of(device.target()) << ")";
    case DeviceKind::cuda: return out << "cuda:" << device.index();
    case DeviceKind::cpu: break;
  }
  return out << "cpu";
}

}  // namespace refrain
