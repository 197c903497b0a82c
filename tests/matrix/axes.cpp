#include <refrain/tests/matrix/axes.h>

#include <refrain/core/check.h>
#include <refrain/tests/strategies/small.h>

#include <algorithm>
#include <span>

namespace refrain::testing {

namespace {

void append(std::vector<std::string>& to, std::initializer_list<std::string_view> flags) {
  for (const std::string_view flag : flags) to.emplace_back(flag);
}

bool is_fused(const Cell& cell) { return cell.value(kOrder).ends_with("fused"); }
bool is_layerwise(const Cell& cell) { return cell.value(kOrder).starts_with("layerwise"); }

bool needs_static_scale(const Cell& cell) { return cell.value(kPrecision) == "16-mixed" && cell.value(kOrder) == "fused"; }

std::vector<std::string> written_flags(const Cell& cell) {
  std::vector<std::string> flags;
  append(flags, {"--checkpoint", cell.value(kCheckpoint), "--precision", cell.value(kPrecision), "--optimizer", cell.value(kOptimizer)});
  // In f16 a second moment is a few of the smallest numbers or zero: the least difference between gradients decides which.
  if (cell.value(kPrecision) == "16-true" && cell.value(kOptimizer) == "adamw") append(flags, {"--optimizer-state", "f32"});
  const std::string_view strategy = cell.value(kStrategy);
  if (strategy == "ddp") append(flags, {"--strategy", "ddp"});
  if (strategy == "local_sgd") append(flags, {"--strategy", "local_sgd"});
  if (strategy == "sharded") append(flags, {"--strategy", "sharded"});
  if (strategy == "sharded gradients") append(flags, {"--strategy", "sharded", "--sharded", "gradients"});
  if (strategy == "sharded optimizer") append(flags, {"--strategy", "sharded", "--sharded", "optimizer"});
  if (strategy == "sharded x ddp") append(flags, {"--strategy", "sharded", "--shard-ranks", "2"});
  if (strategy == "sharded x local_sgd") append(flags, {"--strategy", "local_sgd", "--shard-ranks", "2"});
  if (is_fused(cell)) append(flags, {"--update", "fused"});
  if (is_layerwise(cell)) append(flags, {"--accumulate-schedule", "layerwise"});
  if (cell.value(kOffload) != "none") append(flags, {"--offload", cell.value(kOffload)});
  // One process accumulates what the ranks have.
  const int accumulate = (cell.value(kAccumulate) == "2" ? 2 : 1) * (strategy == "none" ? kNumRanks : 1);
  append(flags, {"--accumulate", std::to_string(accumulate)});
  return flags;
}

}  // namespace

const std::array<Axis, kNumAxes>& axes() {
  static const std::array<Axis, kNumAxes> all{{
      {"strategy",
       {"none", "ddp", "local_sgd", "sharded", "sharded gradients", "sharded optimizer", "sharded x ddp", "sharded x local_sgd"}},
      {"checkpoint", {"none", "block", "nested"}},
      {"precision", {"32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"}},
      {"order", {"ordinary", "fused", "layerwise", "layerwise fused"}},
      {"accumulate", {"1", "2"}},
      {"offload", {"none", "parameters", "boundaries", "all"}},
      {"optimizer", {"sgd", "adamw"}},
  }};
  return all;
}

std::string Cell::name() const {
  std::string text;
  for (std::size_t axis = 0; axis < kNumAxes; ++axis) {
    if (axis > 0) text += '/';
    text += value(AxisName(axis));
  }
  return text;
}

std::vector<Cell> all_cells() { return cells_like("*/*/*/*/*/*/*"); }

std::vector<Cell> cells_like(std::string_view form) {
  std::vector<Cell> cells{Cell{}};
  for (std::size_t axis = 0; axis < kNumAxes; ++axis) {
    const std::size_t end = std::min(form.find('/'), form.size());
    const std::string_view wanted = form.substr(0, end);
    form.remove_prefix(std::min(end + 1, form.size()));
    const std::vector<std::string_view>& values = axes()[axis].values;
    std::vector<Cell> more;
    for (const Cell& cell : cells)
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (wanted != "*" && wanted != values[i]) continue;
        more.push_back(cell);
        more.back().at[axis] = int(i);
      }
    check(!more.empty(), "cell: no value of ", axes()[axis].name, " is called '", wanted, "'");
    cells = std::move(more);
  }
  check(form.empty(), "cell: expected ", kNumAxes, " values separated by '/', '", form, "' is left over");
  return cells;
}

int world_size_of(const Cell& cell) { return cell.value(kStrategy) == "none" ? 1 : kNumRanks; }

std::vector<std::string> flags_of(const Cell& cell) {
  std::vector<std::string> flags = written_flags(cell);
  if (needs_static_scale(cell)) append(flags, {"--loss-scale", "static"});
  return flags;
}

Config base_config() {
  Config config = small_config(false);
  config.depth = 3;
  config.dropout = 0.1;
  config.weight_decay = 0.1;
  config.lr = 0.02;
  config.eps = 1e-3;             // f16 state has no 1e-8
  config.loss_scale_init = 256;  // no overflow: plans know of none
  config.local_steps = 2;
  config.epochs = 0;
  config.max_steps = kNumSteps;
  config.eval_every = 0;
  config.eval_batch = 2;
  config.device = "cpu";
  config.data_path = "/nonexistent";
  config.packing = "online";
  return config;
}

Config config_of(const Cell& cell) {
  const std::vector<std::string> flags = flags_of(cell);
  return with_flags(base_config(), flags);
}

std::vector<Refusal> refusals_of(const Cell& cell) {
  std::vector<Refusal> refusals;
  const std::string_view strategy = cell.value(kStrategy);
  const bool moves_parameters = cell.value(kOffload) == "parameters" || cell.value(kOffload) == "all";
  if ((strategy == "sharded gradients" || strategy == "sharded optimizer") && moves_parameters)
    refusals.push_back({.what = "offload of parameters that are whole on every rank: sharded gradients, sharded optimizer",
                        .flags = flags_of(cell),
                        .reason = "parameters that are whole on every rank"});
  else if (needs_static_scale(cell))
    refusals.push_back({.what = "16-mixed with its dynamic loss scale and the order `fused`; trains with a static one",
                        .flags = written_flags(cell),
                        .reason = "a dynamic scale: needs all gradients before the first update",
                        .has_instead = true});
  return refusals;
}

bool is_refused(const Cell& cell) {
  const std::vector<Refusal> refusals = refusals_of(cell);
  return std::any_of(refusals.begin(), refusals.end(), [](const Refusal& refusal) { return !refusal.has_instead; });
}

}  // namespace refrain::testing
