// What of the training loop depends on there being other ranks: how losses are weighted, what happens to final gradients, what
// all ranks decide by, and what follows a step. The class itself is a world of one, where nothing happens.
#pragma once

#include <refrain/autograd/tape.h>
#include <refrain/data/loader.h>
#include <refrain/dist/process_group.h>
#include <refrain/dist/sharded.h>
#include <refrain/models/chain_model.h>
#include <refrain/optim/grad_scaler.h>
#include <refrain/optim/optimizer.h>
#include <refrain/train/config.h>
#include <refrain/train/replica_states.h>

#include <memory>
#include <span>

namespace refrain {

// What an update has left behind, of this rank's pieces at first.
struct StepCounts {
  std::int64_t first_non_finite = -1;  // parameter
  double lost_updates = 0, updated_elements = 0;
};

class Strategy {
 public:
  Strategy() = default;
  virtual ~Strategy() = default;
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  virtual int rank() const { return 0; }
  virtual int world_size() const { return 1; }
  bool is_main() const { return rank() == 0; }
  // Whether this rank has a part of the copy of the model that snapshots are made of.
  virtual bool is_of_main_replica() const { return is_main(); }

  // The next step is this one, for messages.
  virtual void begin_step(std::int64_t) {}
  // Throws RankLost when another rank has ended: for who computes for long without an exchange.
  virtual void look_about() {}
  // Whether all ranks make this step with the same gradients, losses and loss scale. Otherwise each decides alone, and a step
  // counts although it was left out.
  virtual bool is_together() const { return true; }
  // A step's parameters may be pieces of the model's: what an optimizer is built with. attach() makes it known, once.
  virtual std::vector<ParameterGroup> pieces_of(std::vector<ParameterGroup> groups) const { return groups; }
  virtual void attach(Optimizer&) {}
  // Null where every rank has all of every parameter on the device.
  virtual Sharded* sharded() const { return nullptr; }
  // Whether a rank that has fewer micro-batches than others goes through blank ones, as parameters are gathered from all.
  virtual bool needs_all_ranks() const { return false; }
  // Parameters are there for the model's stages while the result lives; see Sharded::Pass.
  virtual std::shared_ptr<void> pass(const std::string& /*key*/) { return nullptr; }

  // Makes of a window's sum of losses what is gone backward from: every target of all ranks has the same weight.
  virtual double loss_factor(const Loader::Upcoming& window) const {
    return window.all_targets > 0 ? 1.0 / double(window.all_targets) : 0;
  }

  // For the last backward of a step: `then` hears of gradients that are those of all ranks. Afterwards, or on a rank without a
  // micro-batch, finish_backward() once; abandon_backward() after an exception that all ranks meet.
  virtual BackwardOptions reduced(BackwardOptions then) { return then; }
  // Likewise for the backwards before it.
  virtual BackwardOptions accumulated() { return {.is_last = false}; }
  virtual void finish_backward() {}
  virtual void abandon_backward() {}

  // Over all ranks, on every rank; they must all call it.
  virtual void sum(std::span<double>) {}
  virtual void maximum(std::span<double>) {}
  // Over the ranks that make this step with one copy of the model: all, or a replica's, or this one alone.
  virtual void sum_of_replica(std::span<double>) {}
  // Makes of what this rank's pieces say what the replica's say: the norm of their gradients and the first parameter with one that
  // is not finite; and likewise after the update.
  virtual void agree(double& /*norm*/, std::int64_t& /*first_non_finite*/) {}
  virtual void agree(StepCounts&) {}

  // After every step, applied or not. May change parameters, optimizer state and loss scale.
  virtual void end_step(GradScaler&) {}
  // Whether to stop now, given that this rank was asked to: the same answer on every rank.
  virtual bool stops(bool is_asked) { return is_asked; }
  // A snapshot of this step can be gone on from.
  virtual bool can_save() const { return true; }
  // Copies of the model whose optimizer states may differ, each with a loss scale of its own.
  virtual Replicas replicas() const { return {}; }
  // After the last step.
  virtual void finish(GradScaler&) {}

  // What this rank has sent to others so far.
  virtual std::int64_t bytes_sent() const { return 0; }

  // What allocates otherwise in a step is part of its section's name (core/memory/layout.h); nothing where all are alike.
  virtual std::string section() const { return {}; }
  // Whether a later step allocates otherwise than the last one.
  virtual bool will_change() const { return false; }

  virtual OptimizerState state_dict() const { return {}; }
  virtual void load_state(const OptimizerState&) {}
};

// As config.strategy, sharded, shard_ranks and offload say. Rank 0's parameters and buffers go to everybody, here or in attach().
// `group` may be null in a world of one. Throws InvalidArgument for several ranks without a strategy, and for what does not go
// together.
// `newborn` has the pieces of parameters that are evicted already.
std::unique_ptr<Strategy> build_strategy(const Config& config, std::shared_ptr<ProcessGroup> group, const ChainModel& model,
                                         NewbornPieces* newborn = nullptr);

// What takes a model's parameters to their places as they are made; null where they stay where they are.
std::unique_ptr<NewbornPieces> newborn_pieces(const Config& config, const Device& device, int rank, int world_size);

}  // namespace refrain
