// local_sgd: replicas train alone and are averaged every few steps.
#include <refrain/train/strategies.h>

#include <refrain/core/memory/layout.h>
#include <refrain/train/setup.h>

#include <map>

namespace refrain::detail {

namespace {

class LocalSgdStrategy final : public Together {
 public:
  LocalSgdStrategy(const Config& config, std::shared_ptr<ProcessGroup> group, std::unique_ptr<Shards> shards, const ChainModel& model)
      : Together(std::move(group), std::move(shards)),
        num_warmup_(config.local_warmup),
        bucket_bytes_(config.bucket_bytes.value),
        options_(options_of(config)),
        state_(shards_ ? model.named_buffers() : model.state_dict()) {
    if (!shards_) return;
    for (const Sharded::Shard& shard : sharded()->shards()) state_.push_back({shard.name, shard.piece});
  }

  void attach(Optimizer& optimizer) override {
    averaging_.emplace(among(), state_, optimizer, options_);
    if (num_warmup_ > 0 && !shards_)
      ddp_.emplace(*group_, std::vector<NamedTensor>(), optimizer.parameters(),
                   DataParallelOptions{.bucket_bytes = bucket_bytes_, .op = ReduceOp::sum});
  }
  bool is_together() const override { return num_steps_ < num_warmup_; }
  // The mean over the replicas of gradients weighted so is the gradient of the whole window.
  double loss_factor(const Loader::Upcoming& window) const override {
    if (is_together()) return Strategy::loss_factor(window);
    const int replicas = shards_ ? world_size() / shards_->inner->world_size() : world_size();
    return window.all_targets > 0 ? double(replicas) / double(window.all_targets) : 0;
  }
  BackwardOptions reduced(BackwardOptions then) override {
    if (!shards_) return is_together() ? ddp_->options(std::move(then)) : then;
    sharded()->set_across(is_together() && shards_->across->world_size() > 1 ? shards_->across.get() : nullptr);
    return sharded()->options(std::move(then));
  }
  void finish_backward() override {
    if (shards_) sharded()->finish();
    else if (is_together()) ddp_->finish();
  }
  void abandon_backward() override {
    if (shards_) sharded()->abandon();
    else if (is_together()) ddp_->abandon();
  }
  std::string section() const override {
    const std::string buckets = !is_together() || shards_ ? "" : section_of(*ddp_);
    return concat(is_together() ? ", warm-up" : "", buckets, Together::section());
  }
  bool will_change() const override { return was_together_ || is_together() || Together::will_change(); }

  void end_step(GradScaler& scaler) override {
    if (shards_) sharded()->end_step();
    was_together_ = is_together();
    ++num_steps_;
    can_save_ = was_together_;
    if (was_together_) return;
    begin_section(group_->device(), "averaging");
    if (!averaging_->step()) return;
    agree_on_scale(scaler);
    can_save_ = true;
  }
  void finish(GradScaler& scaler) override {
    if (averaging_->num_steps_since() == 0) return;
    begin_section(group_->device(), "averaging");
    averaging_->finish();
    agree_on_scale(scaler);
    can_save_ = true;
  }
  // Ranks meet at averagings alone.
  bool stops(bool is_asked) override {
    is_asked_ = is_asked_ || is_asked;
    return can_save_ && stops_;
  }
  bool can_save() const override { return can_save_; }
  Replicas replicas() const override {
    const int size = shards_ ? shards_->inner->world_size() : 1;
    return {.count = world_size() / size,
            .own = rank() / size,
            .size = size,
            .world = group_.get(),
            .are_alike = num_steps_ <= num_warmup_,
            .keep_tensors = options_.state == StatePolicy::keep && num_steps_ > num_warmup_};
  }

  OptimizerState state_dict() const override {
    OptimizerState state = averaging_->state_dict();
    state.scalars["num_steps"] = double(num_steps_);
    return state;
  }
  void load_state(const OptimizerState& state) override {
    averaging_->load_state(state);
    const auto steps = state.scalars.find("num_steps");
    num_steps_ = steps != state.scalars.end() ? std::int64_t(steps->second) : 0;
  }

 private:
  static LocalSgdOptions options_of(const Config& config) {
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
  ProcessGroup& among() { return shards_ ? *shards_->across : *group_; }

  // The lowest loss scale of all ranks; and whether to stop.
  void agree_on_scale(GradScaler& scaler) {
    double values[] = {-scaler.scale(), is_asked_ ? 1.0 : 0.0};
    maximum(values);
    stops_ = values[1] > 0;
    if (!group_->device().has_bytes() || -values[0] == scaler.scale()) return;
    std::map<std::string, double> state = scaler.state_dict();
    state["scale"] = -values[0];
    scaler.load_state(state);
  }

  std::int64_t num_warmup_, num_steps_ = 0, bucket_bytes_;
  LocalSgdOptions options_;
  std::vector<NamedTensor> state_;
  std::optional<LocalSgd> averaging_;
  std::optional<DataParallel> ddp_;
  bool is_asked_ = false, stops_ = false, can_save_ = true;
  bool was_together_ = false;  // in the last step
};

}  // namespace

std::unique_ptr<Strategy> local_sgd_strategy(const Config& config, std::shared_ptr<ProcessGroup> group, std::unique_ptr<Shards> shards,
                                             const ChainModel& model) {
  return std::make_unique<LocalSgdStrategy>(config, std::move(group), std::move(shards), model);
}

}  // namespace refrain::detail
