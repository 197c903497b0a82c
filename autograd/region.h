// A checkpoint region on the tape: what it needs to run again, and the skeleton of its first run. Internal.
#pragma once

#include <refrain/autograd/checkpoint.h>
#include <refrain/autograd/session.h>

#include <functional>
#include <vector>

namespace refrain::detail {

class RegionRecord final : public Record {
 public:
  RegionRecord(std::shared_ptr<const Skeleton> skeleton, RegionFunction function, std::span<const Tensor> arguments,
               const std::vector<Tensor>& held, std::vector<std::vector<Tensor>> kept, bool offloads);

  bool is_region() const override { return true; }
  std::vector<Tensor> backward(std::span<const Tensor> grad_outs) override;
  Tensor rebuild() const override;
  void release() override;

  // Runs the region again. Its ops are on the tape afterwards, reading the values the first run read; the result is
  // the region's distinct outputs, in the order of Record::outputs.
  std::vector<Tensor> replay();
  // One call a gradient contribution, as backward over the replayed ops will make them.
  void for_each_contribution(const std::function<void(const std::shared_ptr<ValueSlot>&)>& deliver) const;

 private:
  std::vector<bool> reached_outputs() const;

  std::shared_ptr<const Skeleton> skeleton_;
  RegionFunction function_;
  std::vector<std::shared_ptr<SavedEntry>> arguments_;        // null for undefined ones
  std::vector<std::shared_ptr<SavedEntry>> held_;             // captured and kept values: alive, and checked for changes
  std::vector<std::vector<Tensor>> kept_;                     // of the keep-list, [op][result]
};

}  // namespace refrain::detail
