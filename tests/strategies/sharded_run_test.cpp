// Whole runs whose parameters are pieces: snapshots are of the whole model, whoever wrote them and whoever goes on.
#include <refrain/core/io/file.h>
#include <refrain/core/io/snapshot.h>
#include <refrain/tests/strategies/training.h>
#include <refrain/tests/support/scratch_directory.h>
#include <refrain/train/run.h>

#include <filesystem>

using namespace refrain;
using namespace refrain::testing;

namespace {

Config run_config(const ScratchDirectory& scratch, const char* name) {
  Config config = small_config(true);
  config.vocab = 256;
  config.data_path = scratch / "text.txt";
  std::string text;
  for (int i = 0; i < 700; ++i) text += char('a' + (i * i + i / 7) % 23);
  write_file_atomically(config.data_path, text);
  config.max_steps = 12;
  config.epochs = 0;
  config.eval_every = 0;
  config.snapshot_every = 0;
  config.device = "cpu";
  config.optimizer = "adamw";
  config.lr = 0.002;
  config.strategy = "sharded";
  config.run_dir = scratch / name;
  return config;
}

// `stop_after`: rank 0 is asked to stop once it has made so many steps.
void run(const Config& config, int world_size, bool resume = false, std::int64_t stop_after = -1) {
  run_ranks(world_size, [&](const std::shared_ptr<ProcessGroup>& group) {
    std::int64_t steps = 0;
    const RunHooks hooks{.on_step = [&](const Progress& p) { steps = p.step; },
                         .should_stop = [&] { return stop_after >= 0 && steps >= stop_after; }};
    run_training(config, {.resume = resume, .device = group->device(), .group = group}, hooks);
  });
}

std::string last(const Config& config, const char* file) {
  return read_text_file(*find_latest_snapshot(config.run_dir).latest / file, 1 << 24);
}

}  // namespace

TEST_CASE("run: sharded on two ranks, stopped and resumed, offloaded or not, ends with the files of an unbroken ddp run") {
  const ScratchDirectory scratch;
  Config ddp = run_config(scratch, "ddp");
  ddp.strategy = "ddp";
  run(ddp, 2);
  for (const char* offload : {"none", "parameters"}) {
    for (const char* level : {"full", "gradients", "optimizer"}) {
      if (std::string(offload) != "none" && std::string(level) != "full") continue;
      INFO(offload << ' ' << level);
      Config config = run_config(scratch, "run");
      config.offload = offload;
      config.sharded = level;
      run(config, 2, false, 5);
      run(config, 2, true);
      for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
        INFO(file);
        const bool is_same = last(config, file) == last(ddp, file);  // not printed: they are no text
        CHECK(is_same);
      }
      std::filesystem::remove_all(config.run_dir);
    }
  }
}

TEST_CASE("run: a sharded snapshot is gone on from by another number of ranks, by ddp, and by one process") {
  const ScratchDirectory scratch;
  struct Next {
    const char *strategy, *offload;
    int world_size, accumulate;
  };
  std::string expected;
  for (const Next& next : {Next{"sharded", "none", 4, 1}, Next{"sharded", "none", 2, 2}, Next{"ddp", "none", 4, 1}, Next{"none", "parameters", 1, 4}}) {
    INFO(next.strategy << ' ' << next.world_size);
    Config config = run_config(scratch, "run");
    config.optimizer = "sgd";
    run(config, 4, false, 5);
    config.strategy = next.strategy;
    config.offload = next.offload;
    config.accumulate = next.accumulate;
    config.accumulate_schedule = next.accumulate > 1 ? "layerwise" : "ordinary";
    if (next.world_size == 1) run_training(config, {.resume = true, .device = Device::new_cpu()}, {});
    else run(config, next.world_size, true);
    if (expected.empty()) expected = last(config, "model.safetensors");
    // The tied weight's parts are added in another order where micro-batches are accumulated.
    CHECK(last(config, "model.safetensors").size() == expected.size());
    const bool is_same = last(config, "model.safetensors") == expected;
    CHECK((is_same || next.world_size < 4));
    std::filesystem::remove_all(config.run_dir);
  }
}

TEST_CASE("run: offloaded parameters without room in host memory are refused before anything is made") {
  const ScratchDirectory scratch;
  Config config = run_config(scratch, "run");
  config.strategy = "none";
  config.offload = "parameters";
  const Device device = Device::new_cpu();
  device.host().set_memory_limit(10'000, "a small machine");
  CHECK_THROWS_WITH(run_training(config, {.device = device}, {}),
                    Catch::StartsWith("offload = \"parameters\": rank 0 needs ") && Catch::EndsWith("the limit is 10000 (a small machine)"));
  CHECK(device.live_count() == 0);
  CHECK(!std::filesystem::exists(config.run_dir));
}
