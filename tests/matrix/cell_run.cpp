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
  std::int64_t peak_bytes = 0;
  std::vector<std::string> problems;
};

std::vector<float> all_weights(const Module& model) {
  std::vector<float> all;
  for (const std::vector<float>& weights : weights_of(model)) all.insert(all.end(), weights.begin(), weights.end());
  return all;
}

void compare_with_plan(const Config& config, const ProcessGroup& group, RankOutcome& outcome) {
  const Plan plan = plan_training(
      config, {.num_train = kNumTrain, .num_test = kNumTest, .work = false, .world_size = group.world_size(), .rank = group.rank()});
  const Ledger run = group.device().ledger();
  const auto same = [&](std::string_view what, std::int64_t planned, std::int64_t measured) {
    if (planned != measured) outcome.problems.push_back(concat(what, ": planned ", planned, ", measured ", measured));
  };
  same("peak bytes", plan.ledger.peak_bytes(), run.peak_bytes());
  for (int kind = 0; kind < kNumMemoryKinds; ++kind)
    same(concat("highest bytes of kind ", name_of(MemoryKind(kind))), plan.ledger.peak_per_kind()[std::size_t(kind)],
         run.peak_per_kind()[std::size_t(kind)]);
  same("reserved bytes", plan.reserved_bytes, group.device().reserved_bytes());
}

RankOutcome train_rank(const Config& config, const std::shared_ptr<ProcessGroup>& group, bool is_planned) {
  RankOutcome outcome;
  {
    Program program(config, std::make_shared<MadeUpSamples>(false, kNumTrain), std::make_shared<MadeUpSamples>(false, kNumTest),
                    group->device(), group);
    while (program.trainer->num_steps() < program.total)
      if (const std::optional<StepResult> step = program.trainer->step()) outcome.losses.push_back(step->loss);
    program.strategy->finish(program.trainer->scaler());
    program.evaluate();
    outcome.peak_bytes = group->device().ledger().peak_bytes();
    if (is_planned) compare_with_plan(config, *group, outcome);
    outcome.weights = all_weights(*program.model);
  }
  return outcome;
}

// The training with nothing of what saves memory.
Cell plainest(Cell cell) {
  cell.at[kCheckpoint] = cell.at[kOrder] = cell.at[kOffload] = 0;
  return cell;
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

Tolerance tolerance_of(const Cell& cell) {
  const std::string_view strategy = cell.value(kStrategy), precision = cell.value(kPrecision);
  if (strategy == "none" || strategy == "local_sgd") return {0, "the same sums in the same order"};
  if (precision.ends_with("true") && precision != "32-true")
    return {kNumSteps * (precision == "16-true" ? 0x1p-10 : 0x1p-7),
            "16-bit gradients of one process are rounded after every micro-batch; each update may then round to the neighbour"};
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
  const Cell plain = plainest(result.cell);
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
    bool is_whole = false;
    for (const Refusal& refusal : refusals_of(cell)) {
      result.refusals.push_back(refused(cell, refusal));
      is_whole = is_whole || !refusal.has_instead;
    }
    if (!is_whole) {
      const Trained trained = train(config_of(cell), world_size_of(cell), true);
      result.is_trained = true;
      result.peak_bytes = trained.peak_bytes;
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
