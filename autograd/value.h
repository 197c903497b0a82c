// What hangs on a tensor that autograd knows: a leaf with its gradient, or an output of a record on the tape.
#pragma once

#include <refrain/core/context.h>
#include <refrain/core/tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace refrain {

class Record;

// Place of a value inside a checkpoint region's first run, where no records exist.
struct SkeletonMark {
  std::uint64_t session = 0;  // 0: not made inside a first run
  int op = 0, output = 0;
};

class ValueSlot final : public AutogradSlot {
 public:
  ValueSlot() = default;  // a leaf that wants a gradient
  ValueSlot(std::shared_ptr<Record> producer, int index) : record(std::move(producer)), output(index) {}
  ValueSlot(SkeletonMark first_run_mark, bool wants_grad) : mark(first_run_mark), wants_grad_(wants_grad) {}

  bool requires_grad() const override { return wants_grad_; }
  void on_read() override;
  bool is_leaf() const { return record == nullptr && mark.session == 0; }
  void set_requires_grad(bool value) { wants_grad_ = value; }

  std::shared_ptr<Record> record;  // its producer; null for leaves and inside a first run
  int output = 0;                  // which of the producer's outputs
  SkeletonMark mark;

  // Of a leaf: its gradient. What a leaf that several stages of a model read (a tied weight) gets is summed a stage at a
  // time, and then over the stages, the last stage first: the same sum, whether the micro-batches of an update pass the
  // whole model one by one or pass it stage by stage. The first stage's sum is `grad` itself.
  struct StageGrad {
    std::uint32_t stage;
    Tensor grad;
  };
  Tensor grad;
  std::uint32_t grad_stage = 0;
  std::vector<StageGrad> later_stages;  // in the order of their first contributions
  MemoryKind grad_kind = MemoryKind::gradient;
  std::int64_t num_pending = 0;    // contributions a running backward still owes this leaf

 private:
  bool wants_grad_ = true;
};

// The slot of a tensor, null when autograd does not know it.
inline std::shared_ptr<ValueSlot> slot_of(const Tensor& t) { return std::static_pointer_cast<ValueSlot>(t.autograd_slot()); }

}  // namespace refrain
