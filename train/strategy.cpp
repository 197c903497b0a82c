#include <refrain/train/strategy.h>

#include <refrain/core/check.h>
#include <refrain/train/setup.h>
#include <refrain/train/strategies.h>

#include <algorithm>
#include <limits>
#include <numeric>

namespace refrain {

namespace detail {

namespace {

ShardLevel level_of(const Config& config) {
  if (config.strategy != "sharded" || config.sharded == "full") return ShardLevel::full;
  return config.sharded == "gradients" ? ShardLevel::gradients : ShardLevel::optimizer;
}

// Ranks that share one copy of the model.
int replica_size(const Config& config, int world_size) {
  const int asked = int(config.shard_ranks);
  if (config.strategy == "sharded") return asked == 0 ? world_size : asked;
  return config.strategy == "local_sgd" ? std::max(asked, 1) : 1;
}

}  // namespace

Shards::Shards(const Config& config, std::shared_ptr<ProcessGroup> of_world, const ChainModel& model, int replica_size, bool reduces_across,
               NewbornPieces* newborn)
    : world(std::move(of_world)) {
  const int size = world->world_size(), rank = world->rank();
  check(size % replica_size == 0, "shard_ranks: expected a divisor of the ", size, " ranks, got ", replica_size);
  std::vector<int> neighbours(std::size_t(replica_size), 0), same_pieces;
  std::iota(neighbours.begin(), neighbours.end(), rank / replica_size * replica_size);
  for (int other = rank % replica_size; other < size; other += replica_size) same_pieces.push_back(other);
  const auto among = [&](const std::vector<int>& ranks) -> std::shared_ptr<ProcessGroup> {
    if (int(ranks.size()) == size) return world;
    return ranks.size() == 1 ? single_group(world->device()) : world->split(ranks);
  };
  inner = among(neighbours);
  across = among(same_pieces);
  // Weighted by the targets of all ranks, gradients add up.
  sharded = std::make_unique<Sharded>(*inner, stage_parameters(model),
                                      ShardedOptions{.level = level_of(config),
                                                     .is_offloaded = offloads_parameters(config),
                                                     .op = ReduceOp::sum,
                                                     .across = reduces_across && across->world_size() > 1 ? across.get() : nullptr,
                                                     .newborn = newborn});
}

void Together::reduce(ProcessGroup& group, std::span<double> values, ReduceOp op) {
  if (group.world_size() == 1) return;
  const KindScope kind(MemoryKind::communication);
  const ModuleScope root(ModulePath::root()), module("numbers");
  const Tensor numbers = empty({std::int64_t(values.size())}, DType::f64, group.device());
  if (numbers.has_bytes()) set_bytes(numbers, std::as_bytes(values));
  group.all_reduce(numbers, op).wait();
  if (!numbers.has_bytes()) return;
  const std::vector<double> result = numbers.to_vector<double>();
  std::copy(result.begin(), result.end(), values.begin());
}

void Together::begin_step(std::int64_t step) {
  step_ = step;
  look_about();
}

void Together::sum_of_replica(std::span<double> values) {
  if (is_together()) sum(values);
  else if (shards_) reduce(*shards_->inner, values, ReduceOp::sum);
}

std::int64_t Together::bytes_sent() const {
  std::int64_t bytes = group_->bytes_sent();
  if (!shards_) return bytes;
  for (const std::shared_ptr<ProcessGroup>& part : {shards_->inner, shards_->across})
    if (part != nullptr && part != group_) bytes += part->bytes_sent();
  return bytes;
}

std::vector<ParameterGroup> Together::pieces_of(std::vector<ParameterGroup> groups) const {
  return shards_ ? shards_->sharded->pieces_of(std::move(groups)) : groups;
}

std::shared_ptr<void> Together::pass(const std::string& key) {
  if (!shards_) return nullptr;
  is_new_pass_ = !key.empty() && !shards_->sharded->knows(key);
  return std::make_shared<Sharded::Pass>(*shards_->sharded, key);
}

BackwardOptions Together::accumulated() { return shards_ ? shards_->sharded->options({}, false) : Strategy::accumulated(); }

void Together::agree(double& norm, std::int64_t& first_non_finite) {
  if (!shards_) return;
  const GradNorm all = shards_->sharded->norm_of_all({norm, first_non_finite});
  norm = all.norm;
  first_non_finite = all.first_non_finite;
}

void Together::agree(StepCounts& counts) {
  if (!shards_) return;
  constexpr double kNone = std::numeric_limits<double>::max();
  double first[] = {counts.first_non_finite < 0 ? -kNone : -double(counts.first_non_finite)};
  reduce(*shards_->inner, first, ReduceOp::max);
  counts.first_non_finite = first[0] == -kNone ? -1 : std::int64_t(-first[0]);
  double sums[] = {counts.lost_updates, counts.updated_elements};
  reduce(*shards_->inner, sums, ReduceOp::sum);
  counts.lost_updates = sums[0];
  counts.updated_elements = sums[1];
}

}  // namespace detail

std::unique_ptr<NewbornPieces> newborn_pieces(const Config& config, const Device& device, int rank, int world_size) {
  const int replica = detail::replica_size(config, world_size);
  if (detail::level_of(config) != ShardLevel::full || (replica <= 1 && !offloads_parameters(config))) return nullptr;
  return std::make_unique<NewbornPieces>(offloads_parameters(config) ? device.host() : device, rank % replica, replica);
}

std::unique_ptr<Strategy> build_strategy(const Config& config, std::shared_ptr<ProcessGroup> group, const ChainModel& model,
                                         NewbornPieces* newborn) {
  using namespace detail;
  const int world_size = group ? group->world_size() : 1;
  const bool is_offloaded = offloads_parameters(config);
  check(config.strategy != "none" || world_size == 1, "strategy: a world of ", world_size,
        " ranks needs strategy = \"ddp\", \"local_sgd\" or \"sharded\", got \"none\"");
  if (config.strategy == "none" && !is_offloaded) return std::make_unique<Strategy>();
  check(group != nullptr, "strategy: ", config.strategy, " needs a process group");
  const int replica = replica_size(config, world_size);
  if (config.strategy == "local_sgd") {
    std::unique_ptr<Shards> shards;
    if (replica > 1 || is_offloaded) shards = std::make_unique<Shards>(config, group, model, replica, false, newborn);
    return local_sgd_strategy(config, std::move(group), std::move(shards), model);
  }
  if (config.strategy == "ddp" && !is_offloaded) return data_parallel_strategy(config, std::move(group), model);
  auto shards = std::make_unique<Shards>(config, group, model, replica, true, newborn);
  return sharded_strategy(std::move(group), std::move(shards));
}

}  // namespace refrain
