// Where tensors live and kernels run. A Device is a handle: copies name the same arena and ledger.
#pragma once

#include <refrain/core/memory/arena.h>
#include <refrain/core/memory/ledger.h>
#include <refrain/core/memory/timeline.h>
#include <refrain/core/shape.h>
#include <refrain/core/stream.h>

#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>

namespace refrain {

enum class DeviceKind : std::uint8_t { cpu, cuda, plan };
std::string_view name_of(DeviceKind kind);

class Storage;
class Placement;  // core/memory/placement.h

namespace detail {

class TimelineRecorder;

// A backend: an address range, and how bytes get into it, out of it and about. The base of a range without bytes is null.
class AddressRange {
 public:
  virtual ~AddressRange() = default;
  virtual std::byte* base() const = 0;
  virtual std::int64_t capacity() const = 0;

  // The bytes below `end` are about to be used. False where the system has no memory for them; nothing is changed then.
  virtual bool commit(std::int64_t end) = 0;

  // Copies and fills take place after all work given to the device before. When read() returns the values are in `host`, when
  // write() does `host` may be used again; it may be any memory of the process. Nothing else need be done on return.
  virtual void read(std::byte* host, const std::byte* from, std::int64_t bytes) const = 0;
  virtual void write(std::byte* to, const std::byte* host, std::int64_t bytes) const = 0;
  // Elements of `size` bytes (1, 2, 4 or 8) between two layouts of one shape; strides are in elements. Areas that overlap
  // must be contiguous.
  virtual void copy(const Shape& shape, int size, std::byte* to, const Strides& to_strides, const std::byte* from,
                    const Strides& from_strides) const = 0;
  // Sets elements of `size` bytes to the low bytes of `pattern`.
  virtual void fill(const Shape& shape, int size, std::byte* to, const Strides& strides, std::uint64_t pattern) const = 0;
  // Waits for all work given to the device, and throws what went wrong there.
  virtual void synchronize() const {}
  // Where kernels are launched; a CUDA backend only.
  virtual Cuda cuda() const { return {}; }
};
std::unique_ptr<AddressRange> reserve_cpu_range();   // core/cpu
std::unique_ptr<AddressRange> reserve_plan_range();  // core/plan
// core/cuda, or its stub in a build without CUDA. Throws DeviceUnavailable.
std::unique_ptr<AddressRange> reserve_cuda_range(int index);
std::string cuda_problem();  // empty: there is a device

struct DeviceState {
  DeviceState(DeviceKind kind, DeviceKind target, std::unique_ptr<AddressRange> range, int index = 0);
  ~DeviceState();
  DeviceKind kind, target;  // they differ on a plan device only
  int index;                // among the CUDA devices
  std::unique_ptr<AddressRange> range;
  std::mutex mutex;  // guards what follows
  Arena arena;
  Ledger ledger;
  Storage* newest = nullptr;  // the living storages, a list from the latest to the oldest
  std::unique_ptr<TimelineRecorder> timeline;  // null: none runs
  std::unique_ptr<Placement> placement;        // null: blocks go where they fit best
  std::string limit_reason;
  std::shared_ptr<DeviceState> host;  // Device::host(), once it was asked for
  bool is_host_of_another = false;    // this is one
};

}  // namespace detail

class Device {
 public:
  // The process's own CPU device.
  static Device cpu();
  // A CPU device with an arena and ledger of its own, for a second training or a measurement in one process.
  static Device new_cpu();
  // The process's own device on the CUDA device of this number, as the driver counts. Throws DeviceUnavailable, with the reason,
  // where there is none; cuda_problem() asks first.
  static Device cuda(int index = 0);
  // One with an arena and a ledger of its own.
  static Device new_cuda(int index = 0);
  // Why cuda(0) would fail: no CUDA in this build, no driver, no device. Empty where it would not.
  static std::string cuda_problem();
  // Tensors that have sizes and offsets but no bytes: kernels validate and book their cost, and compute nothing. `of`, cpu or
  // cuda, says whose contracts (scratch, workspaces) are planned.
  static Device plan(DeviceKind of = DeviceKind::cpu);

  DeviceKind kind() const { return state_->kind; }
  // What the kernels' contracts are for: cpu or cuda. A plan device's is what it plans.
  DeviceKind target() const { return state_->target; }
  int index() const { return state_->index; }
  // The arena in host memory where what is offloaded from this device lives: a CPU device, or a plan of one, with limit and
  // ledger of its own. It is made when it is first asked for, and named "host" in messages.
  Device host() const;
  bool has_host() const;
  // Waits for all work given to the device. Throws CudaError for what failed there, InvalidArgument for a bad index or target
  // that a kernel met.
  void synchronize() const { state_->range->synchronize(); }
  bool has_bytes() const { return state_->kind != DeviceKind::plan; }

  // Bytes the arena may take from the system; std::numeric_limits::max() lifts the limit. `reason` stands behind the limit in
  // the message of an OutOfMemory, in brackets: where the number comes from.
  void set_memory_limit(std::int64_t bytes, const std::string& reason = {}) const;
  std::int64_t memory_limit() const;
  std::string memory_limit_reason() const;

  // Snapshot under the device's lock.
  Ledger ledger() const;
  std::int64_t live_bytes() const;
  std::int64_t live_bytes(MemoryKind kind) const;
  std::int64_t live_count() const;
  std::int64_t peak_bytes() const;
  std::int64_t reserved_bytes() const;
  void reset_peak() const;
  // Makes reserved_bytes() end where the last block ends. The system keeps what it gave until it needs it.
  void trim() const;

  // Records every birth and death from now on (core/memory/timeline.h), until stopped. Blocks that are alive already are in it,
  // with their ids and tags. One that runs is forgotten and begun anew. Throws InvalidArgument for keep_marks below 0.
  void start_timeline(const TimelineOptions& options = {}) const;
  void stop_timeline() const;
  bool has_timeline() const;
  // What was recorded up to now. Throws InvalidArgument when none runs.
  Timeline timeline() const;
  // A part of the program begins, such as "step 12" or "evaluation". Does nothing where nobody listens.
  void mark(std::string_view label) const;

  // Where allocations from now on are to lie (core/memory/placement.h); null: where they fit best.
  void set_placement(std::unique_ptr<Placement> placement) const;

  detail::DeviceState& state() const { return *state_; }
  friend bool operator==(const Device& a, const Device& b) { return a.state_ == b.state_; }

 private:
  explicit Device(std::shared_ptr<detail::DeviceState> state) : state_(std::move(state)) {}
  std::shared_ptr<detail::DeviceState> state_;
  friend class Storage;
};

// A device's memory limit while the scope lives; the one before comes back.
class MemoryLimitScope {
 public:
  MemoryLimitScope(const Device& device, std::int64_t bytes, const std::string& reason)
      : device_(device), old_limit_(device.memory_limit()), old_reason_(device.memory_limit_reason()) {
    device.set_memory_limit(bytes, reason);
  }
  ~MemoryLimitScope() { device_.set_memory_limit(old_limit_, old_reason_); }
  MemoryLimitScope(const MemoryLimitScope&) = delete;
  MemoryLimitScope& operator=(const MemoryLimitScope&) = delete;

 private:
  Device device_;
  std::int64_t old_limit_;
  std::string old_reason_;
};

std::ostream& operator<<(std::ostream& out, const Device& device);

}  // namespace refrain
