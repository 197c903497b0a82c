// Whole runs of several ranks in one run directory: stopped and resumed, read by other worlds.
#include <refrain/core/io/file.h>
#include <refrain/core/io/safetensors.h>
#include <refrain/core/io/snapshot.h>
#include <refrain/tests/strategies/training.h>
#include <refrain/tests/support/scratch_directory.h>
#include <refrain/train/run.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <utility>

#include <nlohmann/json.hpp>

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
  std::vector<int> notes;           // steps that each rank told of
  std::vector<std::string> texts;  // rank 0's notes
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
                         .on_note = [&](const std::string& text) { runs.texts.push_back(text); },
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

TEST_CASE("run: local_sgd whose replicas keep their own optimizer state goes on with the bits of an unbroken run, sharded inside too") {
  struct Kind {
    const char* optimizer;
    int world_size, shard_ranks;
    std::int64_t warmup;
  };
  for (const Kind& kind : {Kind{"sgd", 2, 1, 0}, Kind{"adamw", 3, 1, 6}, Kind{"adamw", 4, 2, 0}}) {
    const ScratchDirectory scratch;
    Config config = text_config(scratch);
    config.strategy = "local_sgd";
    config.local_steps = 4;
    config.local_warmup = kind.warmup;
    config.shard_ranks = kind.shard_ranks;
    config.optimizer = kind.optimizer;
    config.momentum = 0.5;
    config.lr = 3e-3;
    config.snapshot_every = 1;
    config.keep_snapshots = 100;
    INFO(kind.optimizer << ", " << kind.world_size << " ranks");
    config.run_dir = scratch / "unbroken";
    run(config, kind.world_size);
    const std::string expected = last_weights(config);
    config.run_dir = scratch / "broken";
    const Runs first = run(config, kind.world_size, false, 6);
    CHECK(first.results[0].steps < 12);
    const fs::path snapshot = *find_latest_snapshot(config.run_dir).latest;
    const bool is_warm = first.results[0].steps > kind.warmup;
    CHECK(fs::exists(snapshot / "replicas.json") == is_warm);
    if (is_warm)
      CHECK(read_text_file(snapshot / "optimizer-replica-1.safetensors", 1 << 24) != read_text_file(snapshot / "optimizer.safetensors", 1 << 24));
    const std::vector<std::string> texts = run(config, kind.world_size, true).texts;
    CHECK_THAT(texts.at(0), Catch::StartsWith("resumed from"));
    CHECK(last_weights(config) == expected);
  }
}

TEST_CASE("run: a snapshot of two replicas is gone on from by three, with the first's optimizer state and a note") {
  const ScratchDirectory scratch;
  Config config = text_config(scratch);
  config.strategy = "local_sgd";
  config.local_steps = 4;
  config.momentum = 0.5;
  config.run_dir = scratch / "run";
  run(config, 2, false, 6);
  const Runs more = run(config, 3, true);
  CHECK(more.results[0].is_finished);
  REQUIRE(more.texts.size() == 2);
  CHECK(more.texts[0] == "the snapshot has the optimizer states of 2 replicas: all of 3 go on with the first's");
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

TEST_CASE("run: the bytes that a rank sends a step are reported, and local_sgd's with H = 4 are a quarter of ddp's") {
  const ScratchDirectory scratch;
  const auto bytes_of = [&](const std::string& strategy, std::int64_t num_steps) {
    Config config = text_config(scratch);
    config.depth = 1;
    config.width = 64;  // parameters, and not the step's other numbers, are what is sent
    config.bucket_bytes.value = 1 << 20;
    config.strategy = strategy;
    config.local_steps = 4;
    config.max_steps = num_steps;
    config.log_every = 4;
    config.run_dir = scratch / concat(strategy, num_steps);
    const Runs runs = run(config, 2);
    // The columns of metrics.csv, and its rows of four steps each.
    std::istringstream csv(read_text_file(fs::path(config.run_dir) / "metrics.csv"));
    std::vector<std::vector<std::string>> rows;
    for (std::string line, field; std::getline(csv, line);) {
      std::istringstream fields(line);
      rows.emplace_back();
      while (std::getline(fields, field, ',')) rows.back().push_back(field);
    }
    const std::size_t column = std::size_t(std::find(rows[0].begin(), rows[0].end(), "bytes_sent") - rows[0].begin());
    const double last_row = std::stod(rows.at(std::size_t(num_steps / 4)).at(column));
    const auto summary = nlohmann::json::parse(read_text_file(fs::path(config.run_dir) / "summary.json"));
    return std::pair(last_row, summary.at("bytes_sent_per_step").get<double>());
  };
  const auto [ddp_row, ddp_mean] = bytes_of("ddp", 12);
  const auto [local_row, local_mean] = bytes_of("local_sgd", 12);
  CHECK(ddp_row > 1e5);
  CHECK(local_row / ddp_row == Approx(0.25).epsilon(0.01));
  CHECK(local_mean / ddp_mean == Approx(0.25).epsilon(0.01));
  // What is left over at the end is averaged as well: 4 averagings in 14 steps.
  CHECK(bytes_of("local_sgd", 14).second / ddp_mean == Approx(4 / 14.0).epsilon(0.01));
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
