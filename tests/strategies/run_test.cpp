// Whole runs of several ranks in one run directory: stopped and resumed, read by other worlds.
#include <refrain/core/io/file.h>
#include <refrain/core/io/safetensors.h>
#include <refrain/core/io/snapshot.h>
#include <refrain/tests/strategies/training.h>
#include <refrain/tests/support/scratch_directory.h>
#include <refrain/train/run.h>

#include <filesystem>

using namespace refrain;
using namespace refrain::testing;

namespace fs = std::filesystem;

namespace {

Config text_config(const ScratchDirectory& scratch) {
  Config config = small_config(true);
  config.vocab = 256;
  config.data_path = scratch / "text.txt";
  std::string text;
  for (int i = 0; i < 700; ++i) text += char('a' + (i * i + i / 7) % 23);
  write_file_atomically(config.data_path, text);
  config.max_steps = 20;
  config.epochs = 0;
  config.eval_every = 0;
  config.snapshot_every = 0;
  config.log_every = 1;
  config.device = "cpu";
  config.threads = 0;
  return config;
}

struct Runs {
  std::vector<RunResult> results;
  std::vector<int> notes;
};

// `stop_after`: rank 0 is asked to stop once it has made so many steps.
Runs run(const Config& config, int world_size, bool resume = false, std::int64_t stop_after = -1) {
  Runs runs;
  runs.results.resize(std::size_t(world_size));
  runs.notes.resize(std::size_t(world_size));
  run_ranks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
    std::int64_t steps = 0;
    const std::size_t rank = std::size_t(group->rank());
    const RunHooks hooks{.on_step = [&](const Progress& p) { steps = p.step; ++runs.notes[rank]; },
                         .should_stop = [&] { return stop_after >= 0 && steps >= stop_after; }};
    runs.results[rank] = run_training(config, {.resume = resume, .device = group->device(), .group = group}, hooks);
  });
  return runs;
}

std::string last_weights(const Config& config) {
  return read_text_file(*find_latest_snapshot(config.run_dir).latest / "model.safetensors", 1 << 24);
}

}  // namespace

TEST_CASE("run: two ranks, stopped by one and resumed, end with the bits of an unbroken run; rank 0 alone speaks and writes") {
  for (const char* strategy : {"ddp", "local_sgd"}) {
    const ScratchDirectory scratch;
    Config config = text_config(scratch);
    config.strategy = strategy;
    config.local_steps = 4;
    config.dropout = 0.1;
    config.momentum = 0.5;
    config.local_state = "average";
    config.outer_momentum = 0.3;
    INFO(strategy);
    config.run_dir = scratch / "unbroken";
    const Runs unbroken = run(config, 2);
    CHECK(unbroken.notes[0] == 20);
    CHECK(unbroken.notes[1] == 0);
    CHECK(unbroken.results[0].is_main);
    CHECK(!unbroken.results[1].is_main);
    CHECK(unbroken.results[0].test.loss == unbroken.results[1].test.loss);

    const std::string expected = last_weights(config);
    config.run_dir = scratch / "broken";
    const Runs first = run(config, 2, false, 6);
    CHECK(!first.results[0].is_finished);
    CHECK(!first.results[1].is_finished);
    CHECK(first.results[0].steps == first.results[1].steps);
    CHECK(first.results[0].steps == (config.strategy == "ddp" ? 7 : 8));
    const Runs second = run(config, 2, true);
    CHECK(second.results[1].steps == 20);
    CHECK(last_weights(config) == expected);
    CHECK(second.results[0].test.loss == unbroken.results[0].test.loss);
  }
}

TEST_CASE("run: a ddp snapshot of two ranks is gone on from by one process with twice the micro-batches") {
  const ScratchDirectory scratch;
  Config config = text_config(scratch);
  config.strategy = "ddp";
  config.run_dir = scratch / "run";
  run(config, 2, false, 6);
  config.strategy = "none";
  config.accumulate = 2;
  const RunResult alone = run_training(config, {.resume = true, .device = Device::new_cpu()});
  CHECK(alone.is_finished);
  CHECK(alone.steps == 20);
  config.run_dir = scratch / "alone";
  CHECK(run_training(config, {.device = Device::new_cpu()}).test.loss == Approx(alone.test.loss).epsilon(1e-5));
}

TEST_CASE("run: a rank that ends by an error ends the others, with its words") {
  const ScratchDirectory scratch;
  Config config = text_config(scratch);
  config.strategy = "ddp";
  config.run_dir = scratch / "run";
  fs::create_directories(config.run_dir);
  write_file_atomically(fs::path(config.run_dir) / "config.toml", "x = 1\n");
  CHECK_THROWS_WITH(run(config, 2), Catch::Contains("holds a run already"));
}
