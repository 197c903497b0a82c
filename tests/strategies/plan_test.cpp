// A rank's memory is planned to the byte, on one process.
#include <refrain/tests/strategies/training.h>
#include <refrain/train/plan.h>

using namespace refrain;
using namespace refrain::testing;

namespace {

constexpr std::int64_t kTrain = 26, kTest = 13;

Config planned_config(bool is_text) {
  Config config = small_config(is_text);
  config.vocab = 256;
  config.data_path = "/nonexistent";
  config.packing = "online";
  config.epochs = 3;
  config.eval_batch = 2;
  config.device = "cpu";
  return config;
}

// A whole training as run_training goes, without files.
void run_all(Program& program) {
  while (program.trainer->num_steps() < program.total) {
    if (!program.trainer->step() && program.config.eval_every > 0) program.evaluate();
  }
  program.strategy->finish(program.trainer->scaler());
  program.evaluate();
}

void check_ranks(const Config& config, int world_size) {
  INFO(to_toml(config));
  std::mutex mutex;
  std::vector<std::vector<std::vector<float>>> weights(static_cast<std::size_t>(world_size));
  const bool is_text = config.model == "gpt2";
  run_ranks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
    const int rank = group->rank();
    const Plan plan =
        plan_training(config, {.num_train = kTrain, .num_test = kTest, .work = false, .world_size = world_size, .rank = rank});
    if (plan.layout) group->device().set_placement(follow(plan.layout));
    Ledger run, host;
    std::int64_t reserved = 0;
    {
      Program program(config, std::make_shared<MadeUpSamples>(is_text, kTrain), std::make_shared<MadeUpSamples>(is_text, kTest),
                      group->device(), group);
      run_all(program);
      run = group->device().ledger();
      reserved = group->device().reserved_bytes();
      if (config.offload != "none") host = group->device().host().ledger();
      weights[std::size_t(rank)] = weights_of(program);
    }
    const std::lock_guard lock(mutex);
    INFO("rank " << rank << " of " << world_size);
    CHECK(plan.ledger.peak_bytes() == run.peak_bytes());
    CHECK(plan.ledger.kinds_at_peak() == run.kinds_at_peak());
    CHECK(plan.ledger.peak_per_kind() == run.peak_per_kind());
    CHECK(plan.reserved_bytes == reserved);
    CHECK(plan.host.peak_bytes() == host.peak_bytes());
    CHECK(plan.host.peak_per_kind() == host.peak_per_kind());
    CHECK(run.peak_per_kind()[std::size_t(MemoryKind::communication)] > 0);
  });
  for (const auto& rank : weights) CHECK(rank == weights[0]);
}

}  // namespace

TEST_CASE("plan: a rank's peak, by kind too, is the run's to the byte: ddp and local_sgd, ordinary, fused and layer by layer") {
  for (const bool is_text : {false, true}) {
    for (const char* strategy : {"ddp", "local_sgd"}) {
      for (const char* update : {"after", "fused"}) {
        for (const char* schedule : {"ordinary", "layerwise"}) {
          Config config = planned_config(is_text);
          config.strategy = strategy;
          config.update = update;
          config.accumulate_schedule = schedule;
          config.accumulate = 2;
          config.local_steps = 2;
          config.checkpoint = is_text ? "block" : "none";
          check_ranks(config, 2);
        }
      }
    }
  }
}

TEST_CASE("plan: a rank's peak, and its host's, is the run's to the byte: sharded on every level, offloaded, and both with local_sgd") {
  struct Kind {
    const char *strategy, *sharded, *offload;
    int shard_ranks;
  };
  for (const Kind& kind : {Kind{"sharded", "full", "none", 0}, Kind{"sharded", "gradients", "none", 0}, Kind{"sharded", "optimizer", "none", 0},
                           Kind{"sharded", "full", "parameters", 2}, Kind{"ddp", "full", "parameters", 0},
                           Kind{"local_sgd", "full", "none", 2}, Kind{"local_sgd", "full", "parameters", 2}}) {
    for (const char* update : {"after", "fused"}) {
      for (const char* schedule : {"ordinary", "layerwise"}) {
        const bool is_text = std::string(update) == "fused";
        Config config = planned_config(is_text);
        config.strategy = kind.strategy;
        config.sharded = kind.sharded;
        config.offload = kind.offload;
        config.shard_ranks = kind.shard_ranks;
        config.update = update;
        config.accumulate_schedule = schedule;
        config.accumulate = 2;
        config.local_steps = 2;
        config.optimizer = "adamw";
        config.checkpoint = is_text ? "block" : "none";
        check_ranks(config, 4);
      }
    }
  }
}

TEST_CASE("plan: packed, a rank's reserved bytes are the run's, the steps after the first buckets, a warm-up and the first fetches too") {
  for (const char* strategy : {"ddp", "local_sgd", "sharded"}) {
    for (const std::int64_t max_steps : {2, 3, 7}) {
      Config config = planned_config(false);
      config.packing = "plan";
      config.batch = 1;
      config.strategy = strategy;
      config.local_warmup = config.strategy == "local_sgd" ? 3 : 0;
      config.optimizer = "adamw";
      config.epochs = 0;
      config.max_steps = max_steps;
      config.eval_every = 0;
      check_ranks(config, 2);
    }
  }
}

TEST_CASE("plan: four ranks, of which some have no batch at the end of an epoch; state averaged, warmed up, masters, an outer step") {
  Config config = planned_config(false);
  config.strategy = "ddp";
  check_ranks(config, 4);
  config.gradient_compression = "bf16";
  check_ranks(config, 4);
  config.update = "fused";
  check_ranks(config, 2);
  config.update = "after";
  config.gradient_compression = "none";
  config.strategy = "local_sgd";
  config.local_steps = 3;
  config.optimizer = "adamw";
  config.local_state = "average";
  config.local_warmup = 4;
  check_ranks(config, 4);
  config.outer_momentum = 0.9;
  config.bucket_bytes.value = 1 << 20;
  check_ranks(config, 4);
  config.outer_momentum = 0;
  config.precision = "bf16-true";
  check_ranks(config, 2);
  config.master_weights = true;
  check_ranks(config, 2);
}

TEST_CASE("plan: {ddp, local_sgd} x precisions x regions x {after, fused layer by layer} train three steps as planned, all ranks alike") {
  for (const char* strategy : {"ddp", "local_sgd"}) {
    for (const char* precision : {"32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"}) {
      for (const char* checkpoint : {"none", "block", "nested"}) {
        for (const bool is_fused : {false, true}) {
          Config config = planned_config(false);
          config.epochs = 0;
          config.max_steps = 3;
          config.eval_every = 0;
          config.strategy = strategy;
          config.local_steps = 2;
          config.precision = precision;
          config.loss_scale_init = 256;  // no overflow: plans know of none
          config.checkpoint = checkpoint;
          config.update = is_fused ? "fused" : "after";
          config.accumulate_schedule = is_fused ? "layerwise" : "ordinary";
          config.accumulate = is_fused ? 2 : 1;
          config.optimizer = is_fused ? "sgd" : "adamw";
          config.lr = 1e-3;
          config.eps = 1e-3;  // f16 state has no 1e-8
          check_ranks(config, 2);
        }
      }
    }
  }
}
