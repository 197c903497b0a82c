// Strategies in which all ranks make each step with the same gradients: ddp, and parameters that are sharded or offloaded.
#include <refrain/train/strategies.h>

#include <refrain/train/setup.h>

#include <algorithm>

namespace refrain::detail {

namespace {

class EveryStep : public Together {
 public:
  using Together::Together;
  // Asked now, answered with the next step's numbers: no message of its own.
  void sum(std::span<double> values) override {
    std::vector<double> all(values.begin(), values.end());
    all.push_back(is_asked_ ? 1 : 0);
    Together::sum(all);
    std::copy(all.begin(), all.end() - 1, values.begin());
    stops_ = all.back() > 0;
  }
  bool stops(bool is_asked) override {
    is_asked_ = is_asked;
    return world_size() > 1 ? stops_ : is_asked;
  }

 private:
  bool is_asked_ = false, stops_ = false;
};

class DataParallelStrategy final : public EveryStep {
 public:
  DataParallelStrategy(const Config& config, std::shared_ptr<ProcessGroup> group, const ChainModel& model)
      : EveryStep(std::move(group), nullptr),
        state_(model.state_dict()),
        // Weighted by the targets of all ranks, gradients add up.
        options_{.bucket_bytes = config.bucket_bytes.value, .op = ReduceOp::sum, .compression = gradient_dtype(config)} {}
  void attach(Optimizer& optimizer) override {
    ddp_.emplace(*group_, state_, optimizer.parameters(), options_);
    optimizer.reset_masters();
  }
  BackwardOptions reduced(BackwardOptions then) override { return ddp_->options(std::move(then)); }
  void finish_backward() override { ddp_->finish(); }
  void abandon_backward() override { ddp_->abandon(); }
  std::string section() const override { return section_of(*ddp_); }
  bool will_change() const override { return ddp_->will_change(); }

 private:
  std::vector<NamedTensor> state_;
  DataParallelOptions options_;
  std::optional<DataParallel> ddp_;
};

class ShardedStrategy final : public EveryStep {
 public:
  using EveryStep::EveryStep;
  void attach(Optimizer& optimizer) override { optimizer.reset_masters(); }
  BackwardOptions reduced(BackwardOptions then) override { return sharded()->options(std::move(then)); }
  void finish_backward() override { sharded()->finish(); }
  void abandon_backward() override { sharded()->abandon(); }
  void end_step(GradScaler&) override { sharded()->end_step(); }
};

}  // namespace

std::unique_ptr<Strategy> data_parallel_strategy(const Config& config, std::shared_ptr<ProcessGroup> group, const ChainModel& model) {
  return std::make_unique<DataParallelStrategy>(config, std::move(group), model);
}

std::unique_ptr<Strategy> sharded_strategy(std::shared_ptr<ProcessGroup> group, std::unique_ptr<Shards> shards) {
  return std::make_unique<ShardedStrategy>(std::move(group), std::move(shards));
}

}  // namespace refrain::detail
