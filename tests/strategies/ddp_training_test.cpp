// Trainings by ddp against one process with the same global batch.
#include <refrain/tests/strategies/training.h>

using namespace refrain;
using namespace refrain::testing;

namespace {

Config ddp(Config config) {
  config.strategy = "ddp";
  return config;
}

// One process that accumulates what the ranks have.
Config alone(Config config, int world_size) {
  config.accumulate *= world_size;
  return config;
}

}  // namespace

TEST_CASE("ddp: SGD gives one process's weights to 1e-6 after 20 steps; with one micro-batch a rank the bits, where no weight is tied") {
  for (const bool is_text : {false, true}) {
    for (const int world_size : {2, 4}) {
      for (const int accumulate : {1, 2}) {
        Config config = small_config(is_text);
        config.accumulate = accumulate;
        config.dropout = 0.1;
        INFO(config.model << ", " << world_size << " ranks, accumulate " << accumulate);
        const std::int64_t num_samples = 100;  // windows end unevenly
        const Outcome one = train_alone(alone(config, world_size), num_samples, 20);
        const std::vector<Outcome> ranks = train_ranks(world_size, ddp(config), num_samples, 20);
        for (const Outcome& rank : ranks) {
          CHECK(rank.weights == ranks[0].weights);
          CHECK(rank.losses == ranks[0].losses);
          CHECK(rank.norms == ranks[0].norms);
        }
        CHECK(largest_difference(ranks[0].weights, one.weights) < 1e-6);
        if (accumulate == 1 && !is_text) {
          CHECK(ranks[0].weights == one.weights);
          CHECK(ranks[0].losses == one.losses);
          CHECK(ranks[0].norms == one.norms);
        }
      }
    }
  }
}

TEST_CASE("ddp: AdamW's losses are one process's to 1e-5") {
  for (const bool is_text : {false, true}) {
    Config config = small_config(is_text);
    config.optimizer = "adamw";
    config.lr = 3e-3;
    config.weight_decay = 0.1;
    config.clip_norm = 1;
    config.accumulate = 2;
    const Outcome one = train_alone(alone(config, 2), 80, 20);
    const std::vector<Outcome> ranks = train_ranks(2, ddp(config), 80, 20);
    for (std::size_t i = 0; i < 20; ++i) CHECK(std::abs(ranks[0].losses[i] - one.losses[i]) < 1e-5);
  }
}

TEST_CASE("ddp: regions, fused updates and layer-by-layer schedules change no bit") {
  for (const bool is_text : {false, true}) {
    Config config = ddp(small_config(is_text));
    config.accumulate = 2;
    const std::vector<Outcome> plain = train_ranks(2, config, 50, 8);
    for (const char* checkpoint : {"none", "block", "nested"}) {
      for (const char* update : {"after", "fused"}) {
        for (const char* schedule : {"ordinary", "layerwise"}) {
          Config other = config;
          other.checkpoint = checkpoint;
          other.update = update;
          other.accumulate_schedule = schedule;
          INFO(config.model << ' ' << checkpoint << ' ' << update << ' ' << schedule);
          const std::vector<Outcome> ranks = train_ranks(2, other, 50, 8);
          CHECK(ranks[0].weights == plain[0].weights);
          CHECK(ranks[1].weights == plain[0].weights);
          CHECK(ranks[0].losses == plain[0].losses);
        }
      }
    }
  }
}

TEST_CASE("ddp: clipping with a fused update measures reduced gradients") {
  Config config = ddp(small_config(false));
  config.clip_norm = 0.3;
  const std::vector<Outcome> plain = train_ranks(2, config, 40, 6);
  config.update = "fused";
  config.accumulate_schedule = "layerwise";
  const std::vector<Outcome> fused = train_ranks(2, config, 40, 6);
  CHECK(fused[0].norms == plain[0].norms);
  CHECK(fused[1].weights == plain[0].weights);
}

TEST_CASE("ddp: 4 ranks and 2, 5, 7 or 13 samples: ranks without a batch wait for nobody, and every sample counts once") {
  for (const int num_samples : {2, 5, 7, 13}) {
    for (const char* update : {"after", "fused"}) {
      Config config = small_config(false);
      config.update = update;
      INFO(num_samples << ' ' << update);
      const Outcome one = train_alone(alone(config, 4), num_samples, 5);
      const std::vector<Outcome> ranks = train_ranks(4, ddp(config), num_samples, 5);
      for (const Outcome& rank : ranks) {
        CHECK(rank.weights == one.weights);
        CHECK(rank.losses == one.losses);
      }
    }
  }
}

TEST_CASE("ddp: every precision gives all ranks the same weights, near one process's") {
  for (const char* precision : {"16-mixed", "bf16-mixed", "16-true", "bf16-true"}) {
    Config config = small_config(false);
    config.precision = precision;
    config.lr = 0.02;
    INFO(precision);
    const Outcome one = train_alone(alone(config, 2), 40, 6);
    const std::vector<Outcome> ranks = train_ranks(2, ddp(config), 40, 6);
    CHECK(ranks[0].weights == ranks[1].weights);
    CHECK(ranks[0].losses == ranks[1].losses);
    // 16-bit gradients are rounded once more in one process, and stochastic rounding may fall on the other side.
    const bool is_narrow = std::string(precision).ends_with("true");
    CHECK(largest_difference(ranks[0].weights, one.weights) < (is_narrow ? 0.02 : 1e-6));
  }
}

TEST_CASE("ddp: an overflow on one rank is a skip on all, and the loss scales stay equal") {
  Config config = ddp(small_config(false));
  config.precision = "16-mixed";
  config.loss_scale_init = 0x1p24;  // overflows at first
  const std::vector<Outcome> ranks = train_ranks(2, config, 40, 12);
  CHECK(!ranks[0].is_applied[0]);
  CHECK(ranks[0].is_applied == ranks[1].is_applied);
  CHECK(ranks[0].loss_scale == ranks[1].loss_scale);
  CHECK(ranks[0].loss_scale < 0x1p24);
  CHECK(ranks[0].weights == ranks[1].weights);
}

TEST_CASE("ddp: ranks that begin with other weights hold rank 0's; evaluation counts each sample once on 1, 2 and 4 ranks") {
  Config config = ddp(small_config(false));
  config.eval_batch = 2;
  std::vector<Evaluation> evaluations;
  for (const int world_size : {1, 2, 4}) {
    std::mutex mutex;
    run_ranks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
      Config own = config;
      own.seed += group->rank();  // other initial values
      Program program(own, std::make_shared<MadeUpSamples>(false, 20), std::make_shared<MadeUpSamples>(false, 13), group->device(), group);
      const Evaluation e = program.evaluate();
      const std::lock_guard lock(mutex);
      evaluations.push_back(e);
    });
  }
  REQUIRE(evaluations.size() == 7);
  for (const Evaluation& e : evaluations) {
    CHECK(e.samples == 13);
    CHECK(e.loss == Approx(evaluations[0].loss).epsilon(1e-6));
    CHECK(e.accuracy == evaluations[0].accuracy);
  }
}

TEST_CASE("strategy: a world of two without a strategy is refused") {
  CHECK_THROWS_WITH(train_ranks(2, small_config(false), 20, 1), Catch::Contains("strategy"));
}
