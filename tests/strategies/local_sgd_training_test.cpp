// Trainings by local_sgd: against ddp, and against the algorithm written out.
#include <refrain/tests/strategies/training.h>

using namespace refrain;
using namespace refrain::testing;

namespace {

Config local(Config config, std::int64_t steps) {
  config.strategy = "local_sgd";
  config.local_steps = steps;
  return config;
}

Config ddp(Config config) {
  config.strategy = "ddp";
  return config;
}

// LocalSGD by hand: each rank's own trainer on its own batches, parameters averaged in f64 every H steps and at the end.
std::vector<std::vector<float>> written_out(const Config& config, std::int64_t num_samples, int num_steps, int world_size) {
  struct Rank {
    std::unique_ptr<Program> program;
    std::unique_ptr<Loader> loader;
    std::unique_ptr<Trainer> trainer;
  };
  std::vector<Rank> ranks;
  const bool is_text = config.model == "gpt2";
  // A loader of one process that hands out all ranks' batches in order, of which each rank here takes its own.
  for (int r = 0; r < world_size; ++r) {
    Config own = config;
    own.strategy = "none";
    Rank rank;
    rank.program = std::make_unique<Program>(own, std::make_shared<MadeUpSamples>(is_text, num_samples),
                                             std::make_shared<MadeUpSamples>(is_text, 6), Device::new_cpu());
    ranks.push_back(std::move(rank));
  }
  const std::vector<std::int64_t> order = epoch_order(num_samples, std::uint64_t(config.seed), 0, true);
  const MadeUpSamples samples(is_text, num_samples);
  const auto average = [&] {
    std::vector<std::vector<NamedTensor>> all;
    for (const Rank& rank : ranks) all.push_back(rank.program->model->named_parameters());
    for (std::size_t p = 0; p < all[0].size(); ++p) {
      std::vector<double> mean(std::size_t(all[0][p].tensor.numel()));
      for (const auto& parameters : all) {
        const std::vector<float> values = parameters[p].tensor.to_vector<float>();
        for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += values[i] / double(world_size);
      }
      std::vector<float> rounded(mean.begin(), mean.end());
      for (const auto& parameters : all) set_bytes(parameters[p].tensor.without_autograd(), std::as_bytes(std::span(rounded)));
    }
  };
  std::int64_t position = 0;
  for (int step = 0; step < num_steps; ++step) {
    for (int r = 0; r < world_size; ++r) {
      Program& program = *ranks[std::size_t(r)].program;
      program.optimizer->zero_grad();
      for (std::int64_t a = 0; a < config.accumulate; ++a) {
        Batch batch;
        batch.size = config.batch;
        Shape input = samples.input_shape(), target = samples.target_shape();
        input.insert(0, batch.size);
        target.insert(0, batch.size);
        batch.input = empty(input, samples.input_dtype(), program.device);
        batch.target = empty(target, DType::i64, program.device);
        for (std::int64_t i = 0; i < batch.size; ++i)
          samples.write(order[std::size_t(position++)], 0, batch.input.address() + i * (batch.input.bytes() / batch.size),
                        reinterpret_cast<std::int64_t*>(batch.target.address()) + i * (batch.target.numel() / batch.size));
        const double num_targets = double(config.accumulate * batch.target.numel());
        backward(program.loss(batch, 1 / num_targets).loss);
      }
      program.optimizer->step(config.lr);
    }
    if ((step + 1) % config.local_steps == 0 || step + 1 == num_steps) average();
  }
  return weights_of(*ranks[0].program->model);
}

void finish(Program& program) { program.strategy->finish(program.trainer->scaler()); }

// Weights after the last averaging.
std::vector<std::vector<std::vector<float>>> finished_weights(int world_size, const Config& config, std::int64_t num_samples, int num_steps) {
  std::vector<std::vector<std::vector<float>>> weights(static_cast<std::size_t>(world_size));
  run_ranks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
    const bool is_text = config.model == "gpt2";
    Program program(config, std::make_shared<MadeUpSamples>(is_text, num_samples), std::make_shared<MadeUpSamples>(is_text, 6),
                    group->device(), group);
    train_steps(program, num_steps);
    finish(program);
    weights[std::size_t(group->rank())] = weights_of(*program.model);
  });
  return weights;
}

}  // namespace

TEST_CASE("local_sgd: H = 1 with SGD is ddp to 1e-6, uneven ends, momentum and decay included") {
  for (const int world_size : {2, 4}) {
    for (const std::int64_t num_samples : {7, 50}) {
      Config config = small_config(false);
      config.momentum = 0.9;
      config.lr = 0.02;
      config.weight_decay = 0.1;
      config.local_state = "average";
      INFO(world_size << " ranks, " << num_samples << " samples");
      const std::vector<Outcome> ddp_ranks = train_ranks(world_size, ddp(config), num_samples, 20);
      const std::vector<Outcome> ranks = train_ranks(world_size, local(config, 1), num_samples, 20);
      for (const Outcome& rank : ranks) {
        CHECK(rank.weights == ranks[0].weights);
        CHECK(largest_difference(rank.weights, ddp_ranks[0].weights) < 1e-6);
      }
    }
  }
}

TEST_CASE("local_sgd: H = 2, 4, 8 with accumulation 1 and 2 is the algorithm written out, leftover steps averaged at the end") {
  for (const bool is_text : {false, true}) {
    for (const int steps : {2, 4, 8}) {
      for (const int accumulate : {1, 2}) {
        Config config = small_config(is_text);
        config.accumulate = accumulate;
        config = local(config, steps);
        INFO(config.model << ", H " << steps << ", accumulate " << accumulate);
        const auto expected = written_out(config, 200, 11, 2);
        for (const auto& weights : finished_weights(2, config, 200, 11)) CHECK(largest_difference(weights, expected) < 1e-6);
      }
    }
  }
}

TEST_CASE("local_sgd: sends 1/H of ddp's bytes, up to the first broadcast and the numbers beside") {
  Config config = small_config(false);
  const auto sent = [&](const Config& c, int steps) {
    return train_ranks(2, c, 200, steps)[0].bytes_sent - train_ranks(2, c, 200, 0)[0].bytes_sent;
  };
  const std::int64_t every = sent(ddp(config), 8), fourth = sent(local(config, 4), 8);
  CHECK(double(fourth) < 1.02 * double(every) / 4);
  CHECK(double(fourth) > 0.95 * double(every) / 4);
}

TEST_CASE("local_sgd: a rank that overflows skips alone, ranks still meet, and the lower loss scale is everybody's") {
  Config config = local(small_config(false), 4);
  config.precision = "16-mixed";
  config.loss_scale_init = 1024;
  std::vector<Outcome> ranks = train_ranks(2, config, 200, 8, [](Program& program) {
    // Rank 1 begins with a scale that overflows.
    if (program.strategy->rank() == 0) return;
    std::map<std::string, double> state = program.trainer->scaler().state_dict();
    state["scale"] = 0x1p24;
    program.trainer->scaler().load_state(state);
  });
  CHECK(ranks[0].is_applied == std::vector<bool>(8, true));
  CHECK(!ranks[1].is_applied[0]);
  CHECK(ranks[0].loss_scale == 1024);
  CHECK(ranks[1].loss_scale == 1024);
  CHECK(ranks[0].weights == ranks[1].weights);
}

TEST_CASE("local_sgd: averages in every precision are the same bits on all ranks; masters go with them") {
  for (const char* precision : {"bf16-mixed", "bf16-true", "16-true"}) {
    for (const bool master : {false, true}) {
      Config config = local(small_config(false), 2);
      config.precision = precision;
      config.lr = 0.02;
      config.master_weights = master;
      INFO(precision << ", masters " << master);
      const auto weights = finished_weights(4, config, 100, 5);
      for (const auto& rank : weights) CHECK(rank == weights[0]);
    }
  }
}

TEST_CASE("local_sgd: optimizer state kept, averaged or reset; warm-up is ddp; an outer step of lr 1 without momentum is the average") {
  Config config = small_config(false);
  config.optimizer = "adamw";
  config.lr = 3e-3;
  for (const char* state : {"keep", "average", "reset"}) {
    Config other = local(config, 2);
    other.local_state = state;
    const auto weights = finished_weights(2, other, 100, 6);
    INFO(state);
    CHECK(weights[0] == weights[1]);
  }
  Config warm = local(config, 4);
  warm.local_warmup = 6;
  CHECK(train_ranks(2, warm, 100, 6)[0].weights == train_ranks(2, ddp(config), 100, 6)[0].weights);

  Config outer = local(small_config(false), 3);
  const auto plain = finished_weights(2, outer, 100, 6);
  outer.outer_momentum = 1e-9;
  CHECK(largest_difference(finished_weights(2, outer, 100, 6)[0], plain[0]) < 1e-6);
  outer.outer_momentum = 0.9;
  outer.outer_lr = 0.7;
  CHECK(largest_difference(finished_weights(2, outer, 100, 6)[0], plain[0]) > 1e-4);
}
