// Parameters that are sharded or offloaded train as those that are not.
#include <refrain/tests/strategies/training.h>
#include <refrain/train/plan.h>

#include <string>

using namespace refrain;
using namespace refrain::testing;

namespace {

void check_same(const Outcome& a, const Outcome& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.weights == b.weights);
}

void check_near(const Outcome& a, const Outcome& b, float tolerance) {
  REQUIRE(a.weights.size() == b.weights.size());
  float worst = 0;
  for (std::size_t i = 0; i < a.weights.size(); ++i)
    for (std::size_t j = 0; j < a.weights[i].size(); ++j) worst = std::max(worst, std::abs(a.weights[i][j] - b.weights[i][j]));
  CHECK(worst <= tolerance);
}

Config with_strategy(Config config, const char* strategy, const char* sharded = "full", int shard_ranks = 0) {
  config.strategy = strategy;
  config.sharded = sharded;
  config.shard_ranks = shard_ranks;
  return config;
}

constexpr const char* kLevels[] = {"full", "gradients", "optimizer"};

}  // namespace

TEST_CASE("sharded: twenty steps on 2 and 4 ranks have the bits of ddp, and of one process that accumulates the ranks' batches") {
  for (const bool is_text : {false, true}) {
    for (const int world : {2, 4}) {
      Config config = small_config(is_text);
      config.checkpoint = world == 4 ? "block" : "none";
      const std::vector<Outcome> ddp = train_ranks(world, with_strategy(config, "ddp"), 60, 20);
      for (const char* level : kLevels) {
        INFO(level << (is_text ? " text " : " images ") << world);
        const std::vector<Outcome> sharded = train_ranks(world, with_strategy(config, "sharded", level), 60, 20);
        for (const Outcome& rank : sharded) check_same(rank, ddp[0]);
      }
      config.accumulate = world;
      const Outcome alone = train_alone(config, 60, 20);
      if (is_text) check_near(ddp[0], alone, 1e-6f);  // a tied weight's parts are added in another order
      else CHECK(ddp[0].weights == alone.weights);
    }
  }
}

TEST_CASE("sharded: with accumulation, fused, layer by layer and AdamW, against ddp") {
  for (const char* optimizer : {"sgd", "adamw"}) {
    for (const char* update : {"after", "fused"}) {
      for (const char* schedule : {"ordinary", "layerwise"}) {
        Config config = small_config(false);
        config.optimizer = optimizer;
        config.momentum = 0.9;
        config.lr = 0.002;
        config.update = update;
        config.accumulate_schedule = schedule;
        config.accumulate = 2;
        config.checkpoint = "nested";
        const Outcome ddp = train_ranks(2, with_strategy(config, "ddp"), 48, 6)[0];
        for (const char* level : kLevels) {
          INFO(level << ' ' << optimizer << ' ' << update << ' ' << schedule);
          const std::vector<Outcome> sharded = train_ranks(2, with_strategy(config, "sharded", level), 48, 6);
          CHECK(sharded[0].weights == sharded[1].weights);
          // Gradients of one micro-batch after the other go to their pieces: sums are associated otherwise.
          if (std::string(schedule) == "layerwise" || std::string(level) == "optimizer") {
            check_same(sharded[0], ddp);
          } else if (std::string(optimizer) == "sgd") {
            check_near(sharded[0], ddp, 1e-6f);
          } else {  // Adam makes steps of the rounding noise of the key bias, whose exact gradient is zero
            for (std::size_t i = 0; i < ddp.losses.size(); ++i) CHECK(sharded[0].losses[i] == Approx(ddp.losses[i]).epsilon(1e-5));
          }
        }
      }
    }
  }
}

TEST_CASE("sharded: ranks without a batch at the end of an epoch, and parameters with fewer elements than ranks") {
  Config config = small_config(false);
  config.accumulate = 2;
  config.accumulate_schedule = "layerwise";
  // 7 batches for windows of 8: the last rank has one batch, then none.
  for (const std::int64_t samples : {19, 13, 5}) {
    const Outcome ddp = train_ranks(4, with_strategy(config, "ddp"), samples, 6)[0];
    for (const char* level : kLevels) {
      INFO(level << ' ' << samples);
      for (const Outcome& rank : train_ranks(4, with_strategy(config, "sharded", level), samples, 6)) CHECK(rank.weights == ddp.weights);
    }
  }
}

TEST_CASE("sharded: four ranks as two replicas of two, whose gradients are averaged") {
  const Config config = small_config(false);
  const Outcome ddp = train_ranks(4, with_strategy(config, "ddp"), 60, 10)[0];
  for (const Outcome& rank : train_ranks(4, with_strategy(config, "sharded", "full", 2), 60, 10)) check_near(rank, ddp, 1e-6f);
}

TEST_CASE("sharded: LocalSGD over replicas of two ranks has the bits of LocalSGD over single ranks that accumulate") {
  for (const char* precision : {"32-true", "bf16-mixed"}) {
    for (const char* state : {"keep", "average", "reset"}) {
      Config config = small_config(false);
      config.precision = precision;
      config.optimizer = "adamw";
      config.lr = 0.002;
      config.local_steps = 3;
      config.local_state = state;
      const std::vector<Outcome> mesh = train_ranks(4, with_strategy(config, "local_sgd", "full", 2), 60, 7);
      Config single = with_strategy(config, "local_sgd");
      single.accumulate = 2;
      const std::vector<Outcome> plain = train_ranks(2, single, 60, 7);
      INFO(precision << ' ' << state);
      check_same(mesh[0], plain[0]);
      CHECK(mesh[3].weights == plain[1].weights);
    }
  }
}

TEST_CASE("offload: every precision, order and optimizer has the bits of a training without it") {
  for (const char* precision : {"32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"}) {
    for (const char* schedule : {"ordinary", "layerwise"}) {
      for (const char* update : {"after", "fused"}) {
        Config config = small_config(std::string(update) == "fused");
        config.precision = precision;
        config.optimizer = std::string(schedule) == "ordinary" ? "adamw" : "sgd";
        config.lr = 0.002;
        config.accumulate_schedule = schedule;
        config.update = update;
        if (std::string(update) == "fused" && std::string(schedule) == "ordinary") config.loss_scale = "static";
        config.checkpoint = "block";
        config.accumulate = 2;
        INFO(precision << ' ' << schedule << ' ' << update);
        const Outcome plain = train_alone(config, 30, 5);
        for (const char* offload : {"parameters", "all"}) {
          config.offload = offload;
          check_same(train_alone(config, 30, 5), plain);
        }
      }
    }
  }
}

TEST_CASE("offload: with ddp, sharded and LocalSGD the bits are those without") {
  for (const char* strategy : {"ddp", "sharded", "local_sgd"}) {
    Config config = with_strategy(small_config(false), strategy);
    config.optimizer = "adamw";
    config.lr = 0.002;
    config.local_steps = 2;
    const std::vector<Outcome> here = train_ranks(2, config, 40, 6);
    config.offload = "parameters";
    const std::vector<Outcome> away = train_ranks(2, config, 40, 6);
    INFO(strategy);
    for (std::size_t rank = 0; rank < 2; ++rank) check_same(away[rank], here[rank]);
  }
}

TEST_CASE("sharded: a rank of four holds a quarter of parameters, gradients and optimizer state, give or take what cannot be cut") {
  Config config = small_config(false);
  config.width = 64;
  config.depth = 3;
  config.optimizer = "adamw";
  const Outcome whole = train_ranks(4, with_strategy(config, "ddp"), 48, 3)[0];
  for (const Outcome& rank : train_ranks(4, with_strategy(config, "sharded"), 48, 3)) {
    const auto bytes = [](const Outcome& outcome, MemoryKind kind) { return double(outcome.ledger.live_bytes(kind)); };
    const double all = bytes(whole, MemoryKind::parameter) + bytes(whole, MemoryKind::optimizer_state);
    const double own = bytes(rank, MemoryKind::parameter) + bytes(rank, MemoryKind::optimizer_state);
    CHECK(own / all == Approx(0.25).epsilon(0.02));
    CHECK(double(rank.ledger.peak_per_kind()[std::size_t(MemoryKind::gradient)]) < 0.75 * bytes(whole, MemoryKind::parameter));
  }
}

TEST_CASE("sharded: frozen parameters are gathered and left as they are") {
  Config config = small_config(false);
  config.freeze = {"blocks.0.*"};
  const Outcome ddp = train_ranks(2, with_strategy(config, "ddp"), 40, 5)[0];
  for (const char* level : kLevels) CHECK(train_ranks(2, with_strategy(config, "sharded", level), 40, 5)[1].weights == ddp.weights);
}

TEST_CASE("a training whose parameters are all frozen is refused by the key that did it") {
  Config config = small_config(false);
  config.freeze = {"*"};
  CHECK_THROWS_WITH(train_alone(config, 10, 1), Catch::StartsWith("freeze: every parameter is frozen"));
}

TEST_CASE("sharded: clipping and loss scales go by the norm of the whole") {
  Config config = small_config(false);
  config.clip_norm = 0.5;
  config.precision = "16-mixed";
  config.loss_scale_init = 65536;
  const Outcome ddp = train_ranks(2, with_strategy(config, "ddp"), 40, 8)[0];
  for (const char* level : kLevels) {
    const std::vector<Outcome> sharded = train_ranks(2, with_strategy(config, "sharded", level), 40, 8);
    for (const Outcome& rank : sharded) {
      CHECK(rank.is_applied == ddp.is_applied);
      CHECK(rank.loss_scale == ddp.loss_scale);
      for (std::size_t i = 0; i < ddp.norms.size(); ++i)
        if (ddp.is_applied[i]) CHECK(rank.norms[i] == Approx(ddp.norms[i]).epsilon(1e-6));
      check_near(rank, ddp, 1e-6f);
    }
  }
}

TEST_CASE("offload: the device's planned peak is the same at every depth") {
  std::int64_t peak = 0;
  for (const std::int64_t depth : {12, 48, 192}) {
    Config config = small_config(false);
    config.depth = depth;
    config.data_path = "/nonexistent";
    config.device = "cpu";
    config.packing = "online";
    config.optimizer = "adamw";
    config.update = "fused";
    config.accumulate = 4;
    config.accumulate_schedule = "layerwise";
    config.checkpoint = "nested";
    config.offload = "all";
    config.epochs = 2;
    const Plan plan = plan_training(config, {.num_train = 24, .num_test = 6, .work = false});
    if (peak == 0) peak = plan.ledger.peak_bytes();
    CHECK(plan.ledger.peak_bytes() == peak);
    CHECK(plan.host.peak_bytes() > depth * 10000);
  }
}

TEST_CASE("sharded: a loss that becomes NaN is named by all ranks, whatever has to be run again to find where it began") {
  for (const char* update : {"after", "fused"}) {
    for (const char* schedule : {"ordinary", "layerwise"}) {
      for (const char* level : kLevels) {
        Config config = with_strategy(small_config(false), "sharded", level);
        config.update = update;
        config.accumulate_schedule = schedule;
        config.lr = 1e30;
        INFO(update << ' ' << schedule << ' ' << level);
        int num_named = 0;
        run_ranks(2, [&](const std::shared_ptr<ProcessGroup>& group) {
          Program program(config, std::make_shared<MadeUpSamples>(false, 40), std::make_shared<MadeUpSamples>(false, 6), group->device(), group);
          try {
            train_steps(program, 10);
          } catch (const NonFinite& error) {
            check(std::string(error.what()).find("; first: ") != std::string::npos || std::string(error.what()).find("the update of step") == 0,
                  "unexpected: ", error.what());
            static std::mutex mutex;
            const std::lock_guard lock(mutex);
            ++num_named;
          }
        });
        CHECK(num_named == 2);
      }
    }
  }
}
