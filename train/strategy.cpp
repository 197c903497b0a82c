#include <refrain/train/strategy.h>

#include <refrain/core/check.h>
#include <refrain/core/memory/layout.h>
#include <refrain/dist/data_parallel.h>
#include <refrain/dist/local_sgd.h>
#include <refrain/train/setup.h>

#include <algorithm>
#include <map>
#include <optional>

namespace refrain {

namespace {

// Numbers that ranks exchange beside gradients.
class Together : public Strategy {
 public:
  explicit Together(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}
  int rank() const override { return group_->rank(); }
  int world_size() const override { return group_->world_size(); }
  std::int64_t bytes_sent() const override { return group_->bytes_sent(); }
  void begin_step(std::int64_t step) override {
    step_ = step;
    look_about();
  }
  void look_about() override { group_->set_step(step_); }
  void sum(std::span<double> values) override { reduce(values, ReduceOp::sum); }
  void maximum(std::span<double> values) override { reduce(values, ReduceOp::max); }

 protected:
  void reduce(std::span<double> values, ReduceOp op) {
    const KindScope kind(MemoryKind::communication);
    const ModuleScope root(ModulePath::root()), module("numbers");
    const Tensor numbers = empty({std::int64_t(values.size())}, DType::f64, group_->device());
    if (numbers.has_bytes()) set_bytes(numbers, std::as_bytes(values));
    group_->all_reduce(numbers, op).wait();
    if (!numbers.has_bytes()) return;
    const std::vector<double> result = numbers.to_vector<double>();
    std::copy(result.begin(), result.end(), values.begin());
  }

  std::shared_ptr<ProcessGroup> group_;

 private:
  std::int64_t step_ = -1;  // before the first
};

// In the first step buckets are of the parameters' order, in the second the ranks agree on another.
std::string section_of(const DataParallel& ddp) {
  return ddp.num_updates() == 0 ? ", first buckets" : ddp.num_updates() == 1 ? ", new buckets" : "";
}

class DataParallelStrategy final : public Together {
 public:
  DataParallelStrategy(std::shared_ptr<ProcessGroup> group, const Module& model, Optimizer& optimizer,
                       const DataParallelOptions& options)
      : Together(std::move(group)), ddp_(*group_, model.state_dict(), optimizer.parameters(), options) {
    optimizer.reset_masters();
  }
  BackwardOptions reduced(BackwardOptions then) override { return ddp_.options(std::move(then)); }
  void finish_backward() override { ddp_.finish(); }
  void abandon_backward() override { ddp_.abandon(); }
  std::string section() const override { return section_of(ddp_); }
  bool will_change() const override { return ddp_.will_change(); }

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
    return stops_;
  }

 private:
  DataParallel ddp_;
  bool is_asked_ = false, stops_ = false;
};

class LocalSgdStrategy final : public Together {
 public:
  LocalSgdStrategy(std::shared_ptr<ProcessGroup> group, const Module& model, Optimizer& optimizer, const LocalSgdOptions& options,
                   std::int64_t warmup_steps)
      : Together(std::move(group)), num_warmup_(warmup_steps), averaging_(*group_, model.state_dict(), optimizer, options) {
    if (num_warmup_ > 0)
      ddp_.emplace(*group_, std::vector<NamedTensor>(), optimizer.parameters(),
                   DataParallelOptions{.bucket_bytes = options.bucket_bytes, .op = ReduceOp::sum});
  }
  bool is_together() const override { return num_steps_ < num_warmup_; }
  // The mean over the ranks of gradients weighted so is the gradient of the whole window.
  double loss_factor(const Loader::Upcoming& window) const override {
    if (is_together()) return Strategy::loss_factor(window);
    return window.all_targets > 0 ? double(world_size()) / double(window.all_targets) : 0;
  }
  BackwardOptions reduced(BackwardOptions then) override { return is_together() ? ddp_->options(std::move(then)) : then; }
  void finish_backward() override {
    if (is_together()) ddp_->finish();
  }
  void abandon_backward() override {
    if (is_together()) ddp_->abandon();
  }
  std::string section() const override { return is_together() ? concat(", warm-up", section_of(*ddp_)) : ""; }
  bool will_change() const override { return is_together(); }

  void end_step(GradScaler& scaler) override {
    const bool was_together = is_together();
    ++num_steps_;
    can_save_ = was_together;
    if (was_together) return;
    begin_section(group_->device(), "averaging");
    if (!averaging_.step()) return;
    agree(scaler);
    can_save_ = true;
  }
  void finish(GradScaler& scaler) override {
    if (averaging_.num_steps_since() == 0) return;
    begin_section(group_->device(), "averaging");
    averaging_.finish();
    agree(scaler);
    can_save_ = true;
  }
  // Ranks meet at averagings alone.
  bool stops(bool is_asked) override {
    is_asked_ = is_asked_ || is_asked;
    return can_save_ && stops_;
  }
  bool can_save() const override { return can_save_; }

  OptimizerState state_dict() const override {
    OptimizerState state = averaging_.state_dict();
    state.scalars["num_steps"] = double(num_steps_);
    return state;
  }
  void load_state(const OptimizerState& state) override {
    averaging_.load_state(state);
    const auto steps = state.scalars.find("num_steps");
    num_steps_ = steps != state.scalars.end() ? std::int64_t(steps->second) : 0;
  }

 private:
  // The lowest loss scale of all ranks; and whether to stop.
  void agree(GradScaler& scaler) {
    double values[] = {-scaler.scale(), is_asked_ ? 1.0 : 0.0};
    maximum(values);
    stops_ = values[1] > 0;
    if (!group_->device().has_bytes() || -values[0] == scaler.scale()) return;
    std::map<std::string, double> state = scaler.state_dict();
    state["scale"] = -values[0];
    scaler.load_state(state);
  }

  std::int64_t num_warmup_, num_steps_ = 0;
  LocalSgd averaging_;
  std::optional<DataParallel> ddp_;
  bool is_asked_ = false, stops_ = false, can_save_ = true;
};

LocalSgdOptions local_sgd_options(const Config& config) {
  return {.steps = config.local_steps,
          .bucket_bytes = config.bucket_bytes.value,
          .state = config.local_state == "average" ? StatePolicy::average
                   : config.local_state == "reset" ? StatePolicy::reset
                                                   : StatePolicy::keep,
          .rounding = rounding_of(config) == "stochastic" ? Rounding::stochastic : Rounding::nearest,
          .seed = std::uint64_t(config.seed),
          .outer_lr = config.outer_lr,
          .outer_momentum = config.outer_momentum};
}

}  // namespace

std::unique_ptr<Strategy> build_strategy(const Config& config, std::shared_ptr<ProcessGroup> group, const Module& model,
                                         Optimizer& optimizer) {
  if (config.strategy == "none") {
    check(group == nullptr || group->world_size() == 1, "strategy: a world of ", group ? group->world_size() : 1,
          " ranks needs strategy = \"ddp\" or \"local_sgd\", got \"none\"");
    return std::make_unique<Strategy>();
  }
  check(group != nullptr, "strategy: ", config.strategy, " needs a process group");
  // Weighted by the targets of all ranks, gradients add up.
  if (config.strategy == "ddp")
    return std::make_unique<DataParallelStrategy>(
        std::move(group), model, optimizer,
        DataParallelOptions{.bucket_bytes = config.bucket_bytes.value, .op = ReduceOp::sum, .compression = gradient_dtype(config)});
  return std::make_unique<LocalSgdStrategy>(std::move(group), model, optimizer, local_sgd_options(config), config.local_warmup);
}

}  // namespace refrain
