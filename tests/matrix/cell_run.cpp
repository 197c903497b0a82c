#include <refrain/tests/matrix/cell_run.h>

#include <refrain/core/check.h>
#include <refrain/tests/strategies/small.h>
#include <refrain/train/plan.h>
#include <refrain/train/program.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>

namespace refrain::testing {

namespace {

struct RankOutcome {
  std::vector<float> weights;
  std::vector<double> losses;
  std::int64_t peak_bytes = 0, host_peak_bytes = 0;
  std::vector<std::string> problems;
};

std::vector<float> all_weights(Program& program) {
  std::vector<float> all;
  for (const std::vector<float>& weights : weights_of(program)) all.insert(all.end(), weights.begin(), weights.end());
  return all;
}

// What a device's arena has come to.
struct Memory {
  Ledger ledger = {};
  std::int64_t reserved_bytes = 0;
};

std::vector<std::string> differences(std::string_view where, const Memory& planned, const Memory& measured) {
  std::vector<std::string> found;
  const auto compare = [&](std::string_view what, std::int64_t plan, std::int64_t run) {
    if (plan != run) found.push_back(concat(where, ", ", what, ": planned ", plan, ", measured ", run));
  };
  compare("peak bytes", planned.ledger.peak_bytes(), measured.ledger.peak_bytes());
  for (std::size_t kind = 0; kind < kNumMemoryKinds; ++kind)
    compare(concat("highest bytes of kind ", name_of(MemoryKind(kind))), planned.ledger.peak_per_kind()[kind],
            measured.ledger.peak_per_kind()[kind]);
  compare("reserved bytes", planned.reserved_bytes, measured.reserved_bytes);
  return found;
}

RankOutcome train_rank(const Config& config, const std::shared_ptr<ProcessGroup>& group, bool is_planned) {
  const Device device = group->device();
  RankOutcome outcome;
  Memory run, host;
  {
    Program program(config, std::make_shared<MadeUpSamples>(false, kNumTrain), std::make_shared<MadeUpSamples>(false, kNumTest), device, group);
    while (program.trainer->num_steps() < program.total)
      if (const std::optional<StepResult> step = program.trainer->step()) outcome.losses.push_back(step->loss);
    program.strategy->finish(program.trainer->scaler());
    program.evaluate();
    run = {device.ledger(), device.reserved_bytes()};
    if (device.has_host()) host = {device.host().ledger(), device.host().reserved_bytes()};
    outcome.peak_bytes = run.ledger.peak_bytes();
    outcome.host_peak_bytes = host.ledger.peak_bytes();
    outcome.weights = all_weights(program);
  }
  if (!is_planned) return outcome;
  const Plan plan = plan_training(
      config, {.num_train = kNumTrain, .num_test = kNumTest, .work = false, .world_size = group->world_size(), .rank = group->rank()});
  outcome.problems = differences("device", {plan.ledger, plan.reserved_bytes}, run);
  for (const std::string& problem : differences("host", {plan.host, plan.host_reserved_bytes}, host)) outcome.problems.push_back(problem);
  return outcome;
}

// The training with nothing of what saves memory.
Cell plainest(Cell cell) {
  cell.at[kCheckpoint] = cell.at[kOrder] = cell.at[kOffload] = 0;
  return cell;
}

// Where parameters' pieces get every micro-batch's gradients at once, and not each pass's own, sums are associated otherwise.
Cell plainest_of_same_sums(const Cell& cell) {
  Cell plain = plainest(cell);
  const std::string_view strategy = cell.value(kStrategy), order = cell.value(kOrder);
  const std::string_view layerwise = "layerwise";
  const bool is_sharded = strategy.starts_with("sharded") && strategy != "sharded optimizer";
  if (is_sharded && order.starts_with(layerwise)) {
    const std::vector<std::string_view>& orders = axes()[kOrder].values;
    plain.at[kOrder] = int(std::find(orders.begin(), orders.end(), layerwise) - orders.begin());
  }
  return plain;
}

struct Equivalent {
  Config config;
  int world_size;
};

// One process that accumulates the ranks' micro-batches; where parameters are averaged, as many ranks as are averaged over.
Equivalent simplest_equivalent(const Cell& cell) {
  Cell plain = plainest(cell);
  const bool is_averaged = cell.value(kStrategy) == "local_sgd", is_averaged_over_groups = cell.value(kStrategy) == "sharded x local_sgd";
  if (is_averaged) return {config_of(plain), kNumRanks};
  plain.at[kStrategy] = 0;
  Config config = config_of(plain);
  if (!is_averaged_over_groups) return {config, 1};
  config.strategy = "local_sgd";
  config.accumulate /= 2;
  return {config, 2};
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(double(a[i]) - double(b[i]));
    if (!(difference <= largest)) largest = difference;  // NaN too
  }
  return largest;
}

// Asks for what is documented as refused. Returns the message; throws where there is none or another.
std::string refused(const Cell& cell, const Refusal& refusal) {
  try {
    const Config config = with_flags(base_config(), refusal.flags);
    const Device device = Device::plan();
    const int world_size = world_size_of(cell);
    Program program(config, std::make_shared<MadeUpSamples>(false, kNumTrain), std::make_shared<MadeUpSamples>(false, kNumTest), device,
                    world_size > 1 ? planned_group(device, 0, world_size) : nullptr);
  } catch (const InvalidArgument& error) {
    const std::string message = error.what();
    check(message.find(refusal.reason) != std::string::npos, "expected to be refused by '…", refusal.reason, "…', got '", message, "'");
    return message;
  }
  fail("expected to be refused by '…", refusal.reason, "…', got a training");
}

}  // namespace

// After two steps, and at the end.
constexpr int kNumAveragings = 2;

Tolerance tolerance_of(const Cell& cell) {
  const std::string_view strategy = cell.value(kStrategy), precision = cell.value(kPrecision);
  if (strategy == "none" || strategy == "local_sgd") return {0, "the same sums in the same order"};
  const bool is_averaged = strategy == "sharded x local_sgd";
  if (precision.ends_with("true") && precision != "32-true")
    return {(kNumSteps + (is_averaged ? kNumAveragings : 0)) * (precision == "16-true" ? 0x1p-10 : 0x1p-7),
            "16-bit gradients of one process are rounded after every micro-batch; each update and averaging may then round to the neighbour"};
  if (strategy == "sharded x ddp") return {1e-6, "sums of half the ranks are added: f32 sums associated differently"};
  if (cell.value(kAccumulate) == "1") return {0, "one micro-batch a rank: the ranks' gradients are added as one process adds them"};
  return {1e-6, "each rank's micro-batches are added first, then the ranks': f32 sums associated differently"};
}

CellRunner::CellRunner() = default;

Trained CellRunner::train(const Config& config, int world_size, bool is_planned) {
  std::vector<RankOutcome> ranks(static_cast<std::size_t>(world_size));
  std::unique_ptr<RankThreads>& threads = threads_[world_size];
  if (threads == nullptr) threads = std::make_unique<RankThreads>(world_size);
  threads->run(
      [&](const std::shared_ptr<ProcessGroup>& group) { ranks[std::size_t(group->rank())] = train_rank(config, group, is_planned); });
  Trained trained{.weights = ranks[0].weights, .losses = ranks[0].losses};
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    trained.peak_bytes.push_back(ranks[rank].peak_bytes);
    trained.host_peak_bytes.push_back(ranks[rank].host_peak_bytes);
    for (const std::string& problem : ranks[rank].problems) trained.problems.push_back(concat("rank ", rank, ": ", problem));
    if (ranks[rank].weights != ranks[0].weights) trained.problems.push_back(concat("rank ", rank, "'s weights are not rank 0's"));
  }
  return trained;
}

const Trained& CellRunner::reference(const Config& config, int world_size) {
  const std::string key = concat(world_size, "\n", to_toml(config));
  const auto found = references_.find(key);
  return found != references_.end() ? found->second : references_.emplace(key, train(config, world_size, false)).first->second;
}

void CellRunner::compare(const Trained& trained, CellResult& result) {
  const Cell plain = plainest_of_same_sums(result.cell);
  const Trained& same_strategy = reference(config_of(plain), world_size_of(plain));
  if (trained.weights != same_strategy.weights)
    result.problems.push_back(concat("weights differ by up to ", largest_difference(trained.weights, same_strategy.weights), " from those of ",
                                     plain.name(), ", which have the same sums"));
  if (trained.losses != same_strategy.losses) result.problems.push_back(concat("losses differ from those of ", plain.name()));

  const Equivalent equivalent = simplest_equivalent(result.cell);
  const Trained& simplest = reference(equivalent.config, equivalent.world_size);
  const Tolerance tolerance = tolerance_of(result.cell);
  result.difference = largest_difference(trained.weights, simplest.weights);
  result.is_exact = trained.weights == simplest.weights;
  if (!(result.difference <= tolerance.bound))
    result.problems.push_back(concat("weights differ by up to ", result.difference, " from the simplest equivalent's, expected at most ",
                                     tolerance.bound, " (", tolerance.reason, ")"));
}

CellResult CellRunner::run(const Cell& cell) {
  const auto start = std::chrono::steady_clock::now();
  CellResult result{.cell = cell};
  try {
    for (const Refusal& refusal : refusals_of(cell)) result.refusals.push_back(refused(cell, refusal));
    if (!is_refused(cell)) {
      const Trained trained = train(config_of(cell), world_size_of(cell), true);
      result.is_trained = true;
      result.peak_bytes = trained.peak_bytes;
      result.host_peak_bytes = trained.host_peak_bytes;
      result.problems = trained.problems;
      compare(trained, result);
    }
  } catch (const std::exception& error) {
    result.problems.push_back(error.what());
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace refrain::testing
