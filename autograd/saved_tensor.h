// A value that backward will read. Held as bytes, or, when a cheap op can make it again with the same bits from what
// that op has saved anyway, as a recipe: the op's record.
#pragma once

#include <refrain/autograd/value.h>

#include <optional>

namespace refrain {

// What one saved value is held by. Shared by the op's Saved struct and its record, which releases it.
class SavedEntry {
 public:
  explicit SavedEntry(const Tensor& t);
  ~SavedEntry() { release(); }
  SavedEntry(const SavedEntry&) = delete;
  SavedEntry& operator=(const SavedEntry&) = delete;

  // The value, rebuilt if need be, knowing no autograd. Throws InvalidArgument when its bytes were changed in place
  // since, or when an earlier backward has released it.
  Tensor get() const;
  // The same with the slot the value had, so that gradients find their way; for the inputs of a region's replay.
  Tensor get_with_slot() const;
  // Throws as get() does for bytes changed in place; a recipe's sources are checked when it is rebuilt.
  void check_unchanged() const;
  void release();
  // From now on the bytes are in host memory (Device::host()), and get() copies them back. A recipe holds none and stays as it is.
  void offload();
  // False for a tensor without bytes: a value that no gradient will ask for.
  bool has_value() const { return recipe_ != nullptr || (tensor_.defined() && tensor_.storage() != nullptr); }

 private:
  Tensor tensor_;                         // without autograd; undefined for a recipe
  std::optional<Device> away_from_;       // where it is wanted, while it is in host memory
  std::shared_ptr<Record> recipe_;
  std::shared_ptr<AutogradSlot> slot_;
  std::uint64_t version_ = 0;
  bool released_ = false;
};

class SavedTensor {
 public:
  SavedTensor() = default;
  // Saves t for the op being applied; an undefined tensor saves nothing.
  SavedTensor(const Tensor& t);

  bool defined() const { return entry_ != nullptr; }
  // Undefined when nothing was saved. May rebuild: call once.
  Tensor get() const { return entry_ ? entry_->get() : Tensor(); }
  const std::shared_ptr<SavedEntry>& entry() const { return entry_; }

 private:
  std::shared_ptr<SavedEntry> entry_;
};

}  // namespace refrain
