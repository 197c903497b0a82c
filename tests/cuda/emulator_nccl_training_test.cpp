// Trainings by ddp and local_sgd on 2 and 4 emulated GPUs: against one that accumulates the ranks' batches, and against the plan.
#include <refrain/core/cuda/backend.h>
#include <refrain/tests/cuda/nccl_ranks.h>
#include <refrain/tests/strategies/training.h>
#include <refrain/train/device_choice.h>
#include <refrain/train/plan.h>

using namespace refrain;
using namespace refrain::testing;

namespace {

constexpr std::int64_t kTrain = 50, kTest = 6;

Config with(Config config, const std::string& strategy) {
  config.strategy = strategy;
  config.device = "cuda";
  return config;
}

std::unique_ptr<Program> program_on(const Config& config, const Device& device, const std::shared_ptr<ProcessGroup>& group = nullptr) {
  const bool is_text = config.model == "gpt2";
  return std::make_unique<Program>(config, std::make_shared<MadeUpSamples>(is_text, kTrain),
                                   std::make_shared<MadeUpSamples>(is_text, kTest), device, group);
}

Outcome train_on_one(Config config, int world_size, int num_steps) {
  config.strategy = "none";
  config.accumulate *= world_size;
  return train_steps(*program_on(config, Device::new_cuda()), num_steps);
}

// The group lives longer than what is given it here.
std::shared_ptr<ProcessGroup> shared(ProcessGroup& group) { return {std::shared_ptr<void>(), &group}; }

std::vector<Outcome> train_on(int world_size, const Config& config, int num_steps, bool has_graphs = false) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(world_size));
  nccl_ranks(world_size, [&](ProcessGroup& group) {
    const auto program = program_on(config, group.device(), shared(group));
    Outcome& outcome = outcomes[std::size_t(group.rank())];
    for (int step = 0; step < num_steps && has_graphs; ++step) {
      CudaGraphScope graphs(group.device());
      const std::optional<StepResult> result = program->trainer->step();
      graphs.finish();
      if (result) outcome.losses.push_back(result->loss);
    }
    if (has_graphs)
      outcome.weights = weights_of(*program);
    else
      outcome = train_steps(*program, num_steps);
    if (config.strategy == "local_sgd") {
      program->strategy->finish(program->trainer->scaler());
      outcome.weights = weights_of(*program);
    }
  });
  return outcomes;
}

}  // namespace

TEST_CASE("cuda training: ddp over NCCL has the bits of one GPU that accumulates the ranks' batches", "[training]") {
  for (const int world_size : {2, 4}) {
    const Config config = with(small_config(false), "ddp");
    const Outcome one = train_on_one(config, world_size, 4);
    const std::vector<Outcome> ranks = train_on(world_size, config, 4);
    for (const Outcome& rank : ranks) {
      CHECK(rank.weights == one.weights);
      CHECK(rank.losses == one.losses);
      CHECK(rank.norms == one.norms);
    }
  }
}

TEST_CASE("cuda training: over NCCL with a tied weight, regions, fused updates, bf16 and accumulation", "[training]") {
  Config config = with(small_config(true), "ddp");
  config.accumulate = 2;
  const std::vector<Outcome> plain = train_on(2, config, 3);
  CHECK(plain[1].weights == plain[0].weights);
  CHECK(largest_difference(plain[0].weights, train_on_one(config, 2, 3).weights) < 1e-6);
  config.checkpoint = "block";
  config.update = "fused";
  const std::vector<Outcome> other = train_on(2, config, 3);
  CHECK(other[0].weights == plain[0].weights);
  CHECK(other[1].weights == plain[0].weights);
  config.precision = "bf16-mixed";
  const std::vector<Outcome> half = train_on(2, config, 3);
  CHECK(half[0].weights == half[1].weights);
  CHECK(half[0].losses != plain[0].losses);
}

TEST_CASE("cuda training: over NCCL local_sgd with H = 1 is ddp to 1e-6, with H = 2 all ranks end alike", "[training]") {
  Config config = with(small_config(false), "local_sgd");
  config.local_steps = 1;
  const std::vector<Outcome> ranks = train_on(2, config, 4), all = train_on(2, with(config, "ddp"), 4);
  CHECK(ranks[0].weights == ranks[1].weights);
  CHECK(largest_difference(ranks[0].weights, all[0].weights) < 1e-6);
  config.local_steps = 2;
  const std::vector<Outcome> two = train_on(4, config, 3);  // one step is left over for the end
  for (const Outcome& rank : two) CHECK(rank.weights == two[0].weights);
  CHECK(two[0].weights != ranks[0].weights);
}

TEST_CASE("cuda training: sharded and offloaded over NCCL has ddp's bits; replicas of sharded ranks end alike", "[training]") {
  Config config = with(small_config(false), "ddp");
  config.checkpoint = "block";
  const std::vector<Outcome> ddp = train_on(2, config, 3);
  config.strategy = "sharded";
  for (const auto& [level, offload] : {std::pair{"full", "none"}, {"full", "all"}, {"optimizer", "none"}}) {
    config.sharded = level;
    config.offload = offload;
    INFO(level << ", offload " << offload);
    for (const Outcome& rank : train_on(2, config, 3)) {
      CHECK(rank.weights == ddp[0].weights);
      CHECK(rank.losses == ddp[0].losses);
    }
  }
  config.sharded = "full";
  config.offload = "none";
  config.strategy = "local_sgd";
  config.shard_ranks = 2;
  config.local_steps = 2;
  const std::vector<Outcome> ranks = train_on(4, config, 3);
  for (const Outcome& rank : ranks) CHECK(rank.weights == ranks[0].weights);
}

TEST_CASE("cuda graphs: a ddp step over NCCL has the bits of one without", "[training]") {
  const Config config = with(small_config(false), "ddp");
  const std::vector<Outcome> plain = train_on(2, config, 4), graphs = train_on(2, config, 4, true);
  CHECK(graphs[0].losses == plain[0].losses);
  CHECK(graphs[0].weights == plain[0].weights);
  CHECK(graphs[1].weights == plain[0].weights);
}

TEST_CASE("cuda training: over NCCL a rank's peak, by kind too, is the plan's", "[training]") {
  Config config = with(small_config(false), "ddp");
  config.data_path = "/nonexistent";
  config.epochs = 1;
  for (const char* strategy : {"ddp", "local_sgd"}) {
    config.strategy = strategy;
    std::vector<Ledger> runs(2);
    nccl_ranks(2, [&](ProcessGroup& group) {
      const auto program = program_on(config, group.device(), shared(group));
      while (program->trainer->num_steps() < program->total)
        if (!program->trainer->step() && config.eval_every > 0) program->evaluate();
      program->strategy->finish(program->trainer->scaler());
      program->evaluate();
      runs[std::size_t(group.rank())] = group.device().ledger();
    });
    for (int rank = 0; rank < 2; ++rank) {
      const Plan plan = plan_training(config, {.num_train = kTrain, .num_test = kTest, .work = false, .world_size = 2, .rank = rank});
      const Ledger& run = runs[std::size_t(rank)];
      CHECK(plan.ledger.peak_bytes() == run.peak_bytes());
      CHECK(plan.ledger.kinds_at_peak() == run.kinds_at_peak());
      CHECK(plan.ledger.peak_per_kind() == run.peak_per_kind());
      CHECK(run.peak_per_kind()[std::size_t(MemoryKind::communication)] > 0);
    }
  }
}

TEST_CASE("cuda training: over NCCL the rank that fails in a step is named by the others", "[training]") {
  const Config config = with(small_config(false), "ddp");
  const RankErrors errors = ended_nccl_ranks(3, [&](ProcessGroup& group) {
    const auto program = program_on(config, group.device(), shared(group));
    for (int step = 0; step < 5; ++step) {
      if (step == 3 && group.rank() == 1) throw std::runtime_error("a bad disk");
      program->trainer->step();
    }
  });
  for (const int rank : {0, 2}) {
    REQUIRE(errors[std::size_t(rank)]);
    try {
      std::rethrow_exception(errors[std::size_t(rank)]);
    } catch (const RankLost& lost) {
      INFO(lost.what());
      CHECK(lost.rank == 1);
      CHECK(lost.step >= 3);
    }
  }
}

TEST_CASE("device: under a launcher \"cuda\" and \"auto\" are the rank's own GPU, unless it sees one alone", "[training]") {
  struct Variable {
    Variable(const char* variable, const char* value) : name(variable) { setenv(name, value, 1); }
    ~Variable() { unsetenv(name); }
    const char* name;
  };
  Config config;
  const auto index = [&](const char* word) {
    config.device = word;
    return new_device(config).index();
  };
  CHECK(index("cuda") == 0);
  const Variable rank("RANK", "3"), size("WORLD_SIZE", "4"), local("LOCAL_RANK", "1"), local_size("LOCAL_WORLD_SIZE", "2"),
      address("MASTER_ADDR", "127.0.0.1");
  CHECK(index("cuda") == 1);
  CHECK(index("auto") == 1);
  CHECK(index("cuda:0") == 0);
  {
    const Variable all("CUDA_VISIBLE_DEVICES", "4,7");
    CHECK(index("cuda") == 1);
  }
  const Variable own("CUDA_VISIBLE_DEVICES", "7");  // the launcher gave this rank one
  CHECK(index("cuda") == 0);
}
