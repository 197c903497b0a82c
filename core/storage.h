// A block of an arena, shared by the tensors that view it. Freed with its last holder.
#pragma once

#include <refrain/core/device.h>

#include <memory>

namespace refrain {

class Storage {
 public:
  // Takes `bytes` from the device's arena, tagged with what the calling thread is doing.
  // Throws OutOfMemory naming requested, held, limit, module and op; nothing is changed then.
  static std::shared_ptr<Storage> allocate(const Device& device, std::int64_t bytes);
  Storage(const Device& device, std::int64_t bytes);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  // Null on a plan device, and while the bytes are away.
  std::byte* data() const { return data_; }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t offset() const { return offset_; }
  const Device& device() const { return device_; }
  const MemoryTag& tag() const { return tag_; }
  void set_kind(MemoryKind kind);

  // Counts writes in place, so that a saved tensor that was changed is noticed.
  std::uint64_t version() const { return version_; }
  void bump_version() { ++version_; }

  // Gives the bytes back to the arena, values and all; the storage stays the one that tensors and saved values know. Kernels
  // refuse it until restore(), which takes bytes again, of this kind and with undefined values. Throws OutOfMemory.
  void evict();
  void restore(MemoryKind kind);
  bool is_present() const { return is_present_; }

  // Position of this allocation among all of the process; later ones are larger.
  std::uint64_t birth() const { return birth_; }
  // The same of the bytes it has now: larger than birth() once they have been restored.
  std::uint64_t block() const { return block_; }
  // The birth the next allocation will at least have.
  static std::uint64_t next_birth();

  // The living storage of the same device that is next older; null for the oldest. Under the device's lock.
  const Storage* older() const { return older_; }

  // While something on the tape needs these bytes a temporary counts as a saved activation.
  void add_saved();
  void remove_saved();
  int num_saved() const { return num_saved_; }

 private:
  void take_bytes();
  void release_bytes();

  Device device_;
  std::int64_t bytes_, offset_ = 0;
  std::byte* data_ = nullptr;
  MemoryTag tag_;
  std::uint64_t version_ = 0, birth_ = 0, block_ = 0;
  bool is_present_ = false;
  int num_saved_ = 0;
  Storage *older_ = nullptr, *younger_ = nullptr;
};

}  // namespace refrain
