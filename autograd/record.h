// One entry of the tape: an op that ran, what it saved, where its inputs came from, and the gradients its outputs
// have received so far. Records carry rising sequence numbers: time order is their order.
#pragma once

#include <refrain/autograd/needs.h>
#include <refrain/autograd/random.h>
#include <refrain/autograd/saved_tensor.h>
#include <refrain/core/context.h>

#include <atomic>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace refrain {

// How the output of a cheap op can be had again without being kept.
enum class Rebuild : std::uint8_t { never, from_saved, from_input };

struct OpInfo {
  std::string_view name;
  Rebuild rebuild = Rebuild::never;
};

class Record : public std::enable_shared_from_this<Record> {
 public:
  struct Output {
    Shape shape;
    DType dtype;
    Device device;
    Tensor grad;              // sum of the contributions so far
    bool is_reached = false;  // something the loss depends on reads this output
  };

  explicit Record(const OpInfo& info);
  virtual ~Record();
  Record(const Record&) = delete;
  Record& operator=(const Record&) = delete;

  // Gradients of the inputs, from the gradients of the outputs (contiguous, or undefined where none arrived).
  virtual std::vector<Tensor> backward(std::span<const Tensor> grad_outs) = 0;
  // The first output again, bit for bit. Only for records that can_rebuild().
  virtual Tensor rebuild() const = 0;
  virtual bool is_region() const { return false; }
  // Drops what was saved.
  virtual void release();

  // Whether rebuild() would work: in a replay an op that no gradient reaches may have saved values without bytes.
  bool can_rebuild() const;

  OpInfo info;
  const ModulePath* module = thread_context().module;
  std::uint32_t stage = random_state().stage;  // of the model, whose forward it ran in
  std::uint64_t sequence;
  Needs needs;
  std::vector<std::shared_ptr<ValueSlot>> edges;  // of the inputs; null where no gradient is needed
  std::vector<Output> outputs;
  std::vector<std::shared_ptr<SavedEntry>> saved;
  std::shared_ptr<SavedEntry> rebuild_input;      // recipe of the input of a from_input op
  bool is_released = false;

 private:
  std::shared_ptr<std::atomic<std::int64_t>> live_;  // the tape's count
};

}  // namespace refrain
