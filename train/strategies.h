// The strategies behind strategy.h. Internal.
#pragma once

#include <refrain/dist/data_parallel.h>
#include <refrain/dist/local_sgd.h>
#include <refrain/dist/sharded.h>
#include <refrain/train/strategy.h>

#include <memory>
#include <optional>
#include <vector>

namespace refrain::detail {

// Parameters that are not whole on the device all the time: the ranks that share one copy of the model (`inner`, a replica), and
// those with the same pieces in other replicas (`across`, this one alone where there are none).
struct Shards {
  // Replicas are `replica_size` neighbouring ranks of the world. `reduces_across`: every update's gradients are.
  Shards(const Config& config, std::shared_ptr<ProcessGroup> world, const ChainModel& model, int replica_size, bool reduces_across,
         NewbornPieces* newborn);

  std::shared_ptr<ProcessGroup> world, inner, across;
  std::unique_ptr<Sharded> sharded;
};

// In the first step buckets are of the parameters' order, in the second the ranks agree on another.
inline std::string section_of(const DataParallel& ddp) {
  return ddp.num_updates() == 0 ? ", first buckets" : ddp.num_updates() == 1 ? ", new buckets" : "";
}

// Ranks that exchange numbers beside gradients.
class Together : public Strategy {
 public:
  Together(std::shared_ptr<ProcessGroup> group, std::unique_ptr<Shards> shards) : group_(std::move(group)), shards_(std::move(shards)) {}
  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }
  void begin_step(std::int64_t step) override;
  void look_about() override { group_->set_step(step_); }
  void sum(std::span<double> values) override { reduce(*group_, values, ReduceOp::sum); }
  void maximum(std::span<double> values) override { reduce(*group_, values, ReduceOp::max); }
  void sum_of_replica(std::span<double> values) override;
  std::int64_t bytes_sent() const override;

  std::vector<ParameterGroup> pieces_of(std::vector<ParameterGroup> groups) const override;
  Sharded* sharded() const override { return shards_ ? shards_->sharded.get() : nullptr; }
  bool is_of_main_replica() const override { return shards_ ? rank() < shards_->inner->world_size() : is_main(); }
  bool needs_all_ranks() const override { return shards_ != nullptr && !shards_->sharded->accumulates_whole() && shards_->inner->world_size() > 1; }
  std::shared_ptr<void> pass(const std::string& key) override;
  BackwardOptions accumulated() override;
  void agree(double& norm, std::int64_t& first_non_finite) override;
  void agree(StepCounts& counts) override;
  std::string section() const override { return is_new_pass_ ? ", first fetches" : ""; }
  bool will_change() const override { return is_new_pass_; }

 protected:
  static void reduce(ProcessGroup& group, std::span<double> values, ReduceOp op);

  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<Shards> shards_;

 private:
  std::int64_t step_ = -1;  // before the first
  bool is_new_pass_ = false;
};

std::unique_ptr<Strategy> data_parallel_strategy(const Config& config, std::shared_ptr<ProcessGroup> group, const ChainModel& model);
// Gradients are those of all ranks; pieces of parameters may be elsewhere.
std::unique_ptr<Strategy> sharded_strategy(std::shared_ptr<ProcessGroup> group, std::unique_ptr<Shards> shards);
std::unique_ptr<Strategy> local_sgd_strategy(const Config& config, std::shared_ptr<ProcessGroup> group, std::unique_ptr<Shards> shards,
                                             const ChainModel& model);

}  // namespace refrain::detail
