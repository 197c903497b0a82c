// Gradients that go to the ranks that keep the pieces of their parameters. Internal to Sharded.
//
// A gradient that is final moves into its unit's message. The message is reduced when the stage is left, which every rank does
// at the same place whatever it uses, and the reduction goes on while the stages before compute.
#pragma once

#include <refrain/autograd/tape.h>
#include <refrain/core/copier.h>
#include <refrain/dist/process_group.h>
#include <refrain/dist/shard_layout.h>
#include <refrain/dist/shard_units.h>

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

namespace refrain::detail {

class ShardGradients {
 public:
  // `pieces` of all parameters of `units`; those of frozen ones are left alone. With `across` pieces are reduced there as well.
  ShardGradients(ProcessGroup& group, const ShardUnits& units, std::vector<Tensor> pieces, ReduceOp op, ProcessGroup* across);

  BackwardOptions options(BackwardOptions then, bool is_last);
  // A stage is left: reduces what is complete.
  void leave_stage();
  // Ends the reduction under way.
  void settle() { deliver(); }
  void finish();
  void abandon();
  void set_across(ProcessGroup* across) { across_ = across; }

 private:
  struct Unit {
    std::vector<std::size_t> parameters;  // that want a gradient
    ShardLayout layout;
    std::uint32_t first_stage;
    bool is_tied;                         // several stages read it
    // Of the backward that goes on:
    Tensor message = {};
    std::vector<bool> has_grad = {};
    std::int64_t num_missing = 0;
    // Of the update: this rank's section of the sum over the micro-batches so far, and what every one of them has had.
    Tensor sum = {};
    std::vector<bool> had_grad = {};
  };
  struct Place {
    std::size_t unit, part;
  };
  // Alone in its world a tied parameter's gradient stays where it is until the last backward, so that what its stages contribute is
  // added up in the order of a training without pieces.
  bool waits(const Unit& unit) const { return unit.is_tied && !is_last_ && group_.world_size() == 1; }
  void take(std::size_t parameter, bool has_grad);
  Tensor new_message(const Unit& unit) const;
  void end_move();
  void start(Unit& unit);
  void deliver();
  void add_sum(Unit& unit);
  void begin_way_home(const Unit& unit);
  void announce(Unit& unit);
  // Sums over micro-batches go on to other worlds, once an update.
  bool goes_across() const { return is_last_ && across_ != nullptr; }

  ProcessGroup& group_;
  ProcessGroup* across_;
  ReduceOp op_;
  std::vector<NamedTensor> parameters_;
  std::vector<Tensor> pieces_;
  std::vector<Unit> units_;  // in the order of their reductions
  std::unordered_map<std::size_t, Place> places_;
  std::unordered_map<const AutogradSlot*, std::size_t> index_of_;
  // Of the backward that goes on:
  BackwardOptions then_;
  bool is_running_ = false, is_last_ = true, has_backward_ = false;
  std::vector<bool> is_taken_;  // of each parameter
  std::size_t num_started_ = 0;
  std::optional<std::size_t> under_way_;
  Tensor section_;              // what the reduction under way makes
  Work work_;
  Copier copier_;
  Tensor moving_;               // the gradient that is copied into its message
  Tensor at_home_;              // the section where pieces live, when it is complete or on its way
  Copier::Ticket ticket_ = Copier::kDone;
};

}  // namespace refrain::detail
