// Chunked loss and chunked MLP in training: what is planned is what runs, losses are those of the whole, and peaks are lower.
#include <refrain/core/io/file.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/train/check_plan.h>
#include <refrain/tests/train/memory_fixture.h>
#include <refrain/train/plan.h>
#include <refrain/train/run.h>

#include <algorithm>

using namespace refrain;
using refrain::testing::check_plan;
using refrain::testing::ScratchDirectory;
using refrain::testing::small_gpt2;
using refrain::testing::small_vit;
namespace fs = std::filesystem;

namespace {

Config config_in(const ScratchDirectory& scratch, bool is_vit) {
  Config config = is_vit ? small_vit(scratch) : small_gpt2(scratch);
  config.depth = 3;
  config.mlp_ratio = 4;
  config.epochs = 1;
  return config;
}

struct Course {
  std::vector<double> losses;
  Evaluation test;
  std::string weights;  // the file of the last snapshot
  std::int64_t peak = 0;
};

Course train(const ScratchDirectory& scratch, Config config) {
  static int number = 0;
  config.run_dir = scratch / ("course-" + std::to_string(number++));
  const Device device = Device::new_cpu();
  Course course;
  const RunResult result =
      run_training(config, {.device = device}, {.on_step = [&](const Progress& p) { course.losses.push_back(p.loss); }});
  course.test = result.test;
  course.peak = device.ledger().peak_bytes();
  course.weights = read_text_file(fs::path(config.run_dir) / "snapshots" / ("step-" + std::to_string(result.steps)) / "model.safetensors");
  return course;
}

double furthest(const Course& a, const Course& b) {
  REQUIRE(a.losses.size() == b.losses.size());
  double worst = std::abs(a.test.loss / b.test.loss - 1);
  for (std::size_t i = 0; i < a.losses.size(); ++i) worst = std::max(worst, std::abs(a.losses[i] / b.losses[i] - 1));
  return worst;
}

}  // namespace

TEST_CASE("chunks: peak and reserved bytes of the plan are the run's in every precision, with every policy", "[sweep]") {
  const ScratchDirectory scratch;
  int turn = 0;
  for (const bool is_vit : {false, true}) {
    for (const char* precision : {"32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"}) {
      for (const char* checkpoint : {"none", "block", "nested", "selective"}) {
        Config config = config_in(scratch, is_vit);
        config.precision = precision;
        config.checkpoint = checkpoint;
        if (config.checkpoint == "selective") config.checkpoint_keep = {"attention"};
        config.loss_chunk = turn % 3 == 2 ? 0 : 5;
        config.mlp_chunk = turn % 3 == 1 ? 0 : 7;
        config.optimizer = turn % 2 == 0 ? "sgd" : "adamw";
        config.accumulate = turn % 4 == 0 ? 3 : 1;
        config.dropout = turn % 5 == 0 ? 0 : 0.1;
        config.label_smoothing = turn % 2 == 0 ? 0 : 0.1;
        config.update = config.precision != "16-mixed" && turn % 7 == 3 ? "fused" : "after";
        config.eval_batch = turn % 5 == 0 ? 13 : 0;
        check_plan(scratch, config);
        ++turn;
      }
    }
  }
}

TEST_CASE("chunks: one chunk of everything is planned as it runs, and so is a chunk of one row") {
  const ScratchDirectory scratch;
  for (const std::int64_t rows : {1, 1000000}) {
    Config config = config_in(scratch, false);
    config.loss_chunk = config.mlp_chunk = rows;
    check_plan(scratch, config);
  }
}

TEST_CASE("chunks: the layerwise schedule takes them, planned as it runs and with the ordinary loop's losses") {
  const ScratchDirectory scratch;
  for (const bool is_vit : {false, true}) {
    for (const char* precision : {"32-true", "bf16-mixed", "bf16-true"}) {
      Config config = config_in(scratch, is_vit);
      config.precision = precision;
      config.accumulate = 3;
      config.loss_chunk = 5;
      config.mlp_chunk = 7;
      config.dropout = 0.1;
      config.checkpoint = is_vit ? "block" : "none";
      const Course ordinary = train(scratch, config);
      config.accumulate_schedule = "layerwise";
      check_plan(scratch, config);
      const Course layerwise = train(scratch, config);
      INFO(config.model << ' ' << precision);
      CHECK(layerwise.losses == ordinary.losses);
      CHECK(layerwise.weights == ordinary.weights);
    }
  }
}

TEST_CASE("chunks: a chunked loss trains as the whole loss does") {
  const ScratchDirectory scratch;
  for (const bool is_vit : {false, true}) {
    Config config = config_in(scratch, is_vit);
    config.epochs = 0;
    config.max_steps = 10;
    config.optimizer = "adamw";
    config.lr = 1e-3;
    config.label_smoothing = 0.1;
    config.dropout = 0.1;
    const Course whole = train(scratch, config);
    REQUIRE(whole.losses.size() == 10);
    for (const std::int64_t chunk : {1, 7, 50, 1000}) {
      config.loss_chunk = chunk;
      const Course chunked = train(scratch, config);
      INFO(config.model << " chunk " << chunk);
      CHECK(furthest(chunked, whole) < 1e-5);
      CHECK(chunked.losses[0] == whole.losses[0]);  // every bit: the same weights
      CHECK(chunked.test.accuracy == Approx(whole.test.accuracy).margin(0.051));
      if (chunk == 1000) CHECK(chunked.weights == whole.weights);                      // one chunk: the same bits throughout
      if (!is_vit && chunk == 7) CHECK(chunked.peak < whole.peak - 8 * 12 * 256 * 4);  // at least one of the logits and their gradient
    }
  }
}

TEST_CASE("chunks: a chunked MLP trains as the layers do, and checkpoints change no bit of it") {
  const ScratchDirectory scratch;
  for (const bool is_vit : {false, true}) {
    for (const char* precision : {"32-true", "bf16-mixed"}) {
      Config config = config_in(scratch, is_vit);
      config.precision = precision;
      config.epochs = 0;
      config.max_steps = 10;
      config.optimizer = "adamw";
      config.lr = 1e-3;
      config.dropout = 0.1;
      const Course layers = train(scratch, config);
      config.mlp_chunk = 7;
      const Course chunked = train(scratch, config);
      INFO(config.model << ' ' << precision);
      CHECK(chunked.losses[0] == layers.losses[0]);
      if (config.precision == "32-true") CHECK(furthest(chunked, layers) < 1e-5);
      CHECK(chunked.peak < layers.peak);
      for (const char* checkpoint : {"block", "nested", "selective"}) {
        config.checkpoint = checkpoint;
        config.checkpoint_keep.clear();
        if (config.checkpoint == "selective") config.checkpoint_keep = {"attention"};
        config.certify = true;
        const Course checkpointed = train(scratch, config);
        INFO(checkpoint);
        CHECK(checkpointed.losses == chunked.losses);
        CHECK(checkpointed.weights == chunked.weights);
      }
      config.checkpoint = "none";
      config.checkpoint_keep.clear();
      config.certify = false;
      // Micro-batches of half the size are the same samples in other sums.
      config.batch = 4;
      config.accumulate = 2;
      if (config.precision == "32-true") CHECK(furthest(train(scratch, config), chunked) < 1e-4);
    }
  }
}

TEST_CASE("chunks: a block in a region replays nothing more for a chunked MLP") {
  const ScratchDirectory scratch;
  Config config = config_in(scratch, true);
  config.checkpoint = "block";
  const Plan layers = plan_training(config);
  config.mlp_chunk = 8;
  const Plan chunked = plan_training(config);
  CHECK(chunked.ledger.peak_bytes() < layers.ledger.peak_bytes());
  CHECK(chunked.run.total.flops < 1.01 * layers.run.total.flops);
  config.checkpoint = "none";
  const Plan dear = plan_training(config);
  config.mlp_chunk = 0;
  CHECK(dear.run.total.flops > 1.02 * plan_training(config).run.total.flops);
}
