#include <refrain/autograd/tape.h>
#include <refrain/core/io/file.h>
#include <refrain/core/io/safetensors.h>
#include <refrain/core/io/snapshot.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/images.h>
#include <refrain/tests/support/scratch_directory.h>
#include <refrain/train/run.h>
#include <refrain/train/setup.h>

#include <map>
#include <sstream>

#include <unistd.h>

using namespace refrain;
using refrain::testing::ScratchDirectory;
using refrain::testing::write_images;
namespace fs = std::filesystem;

namespace {

// A ViT with everything random in it: dropout, stochastic depth, crops and flips, and a short last window.
Config vit_config_in(const ScratchDirectory& scratch, const std::string& run) {
  Config config;
  config.patch_size = 4;
  config.width = 16;
  config.depth = 2;
  config.num_heads = 2;
  config.mlp_ratio = 2;
  config.dropout = 0.1;
  config.attention_dropout = 0.1;
  config.stochastic_depth = 0.2;
  config.data_path = scratch / "data";
  config.crop_padding = 1;
  config.flip = true;
  config.batch = 8;
  config.accumulate = 2;
  config.epochs = 3;
  config.optimizer = "adamw";
  config.lr = 1e-2;
  config.weight_decay = 0.1;
  config.warmup_steps = 2;
  config.clip_norm = 1;
  config.label_smoothing = 0.1;
  config.checkpoint = "block";
  config.log_every = 1;
  config.snapshot_every = 5;
  config.seed = 7;
  config.run_dir = scratch / run;
  return config;
}

Config gpt2_config_in(const ScratchDirectory& scratch, const std::string& run) {
  std::string text;
  for (int i = 0; i < 600; ++i) text += "the quick brown fox jumps over the lazy dog. "[(i * 7 + i / 45) % 45];
  Config config = vit_config_in(scratch, run);
  config.model = "gpt2";
  config.data_format = "text";
  config.data_path = scratch.write("text", text);
  config.context = 16;
  config.vocab = 256;
  config.crop_padding = 0;
  config.flip = false;
  config.stochastic_depth = 0;
  config.optimizer = "sgd";
  config.momentum = 0.9;
  config.lr = 0.1;
  return config;
}

// metrics.jsonl without what depends on the clock.
std::vector<std::string> course(const fs::path& run_dir) {
  std::vector<std::string> lines;
  std::istringstream text(read_text_file(run_dir / "metrics.jsonl"));
  for (std::string line; std::getline(text, line);) {
    for (const char* name : {"\"samples_per_second\":", "\"data_wait_share\":", "\"live_bytes\":", "\"peak_bytes\":"}) {
      const std::size_t begin = line.find(name);
      if (begin != std::string::npos) line.erase(begin, line.find(',', begin) - begin);
    }
    lines.push_back(line);
  }
  return lines;
}

std::map<std::string, std::string> files_of(const fs::path& snapshot) {
  std::map<std::string, std::string> files;
  for (const char* name : {"model.safetensors", "optimizer.safetensors"}) files[name] = read_text_file(snapshot / name);
  std::istringstream json(read_text_file(snapshot / "trainer.json"));
  for (std::string line; std::getline(json, line);)
    if (line.find("seconds") == std::string::npos) files["trainer.json"] += line;
  return files;
}

RunHooks stop_after(std::int64_t steps, std::int64_t& count) {
  return {.on_step = [&count](const Progress& progress) { count = progress.step; },
          .should_stop = [&count, steps] { return count >= steps; }};
}

}  // namespace

TEST_CASE("run: stopped at any step and resumed, losses, order, learning rates, weights and optimizer equal the unbroken run's bits") {
  const ScratchDirectory scratch;
  write_images(scratch);
  struct Variant {
    bool is_gpt2;
    std::string precision, optimizer;
  };
  const Variant variant =
      GENERATE(Variant{false, "32-true", "adamw"}, Variant{true, "32-true", "sgd"}, Variant{false, "16-mixed", "adamw"},
               Variant{true, "bf16-mixed", "adamw"}, Variant{false, "bf16-true", "adamw"}, Variant{true, "bf16-true", "sgd"});
  const auto config_for = [&](const std::string& run) {
    Config config = variant.is_gpt2 ? gpt2_config_in(scratch, run) : vit_config_in(scratch, run);
    config.precision = variant.precision;
    config.optimizer = variant.optimizer;
    if (variant.optimizer != "sgd") config.momentum = 0;
    config.loss_scale_interval = 3;  // grows before and after every stop
    return config;
  };
  const Config whole = config_for("whole");
  const RunResult unbroken = run_training(whole, {.device = Device::new_cpu()});
  REQUIRE(unbroken.is_finished);
  REQUIRE(unbroken.steps >= 9);
  for (const std::int64_t stop : {std::int64_t{1}, std::int64_t{4}, std::int64_t{5}, unbroken.steps - 1}) {
    const Config config = config_for(concat("stopped-at-", stop));
    std::int64_t count = 0;
    const RunResult first = run_training(config, {.device = Device::new_cpu()}, stop_after(stop, count));
    CHECK(!first.is_finished);
    CHECK(first.steps == stop);
    const RunResult second = run_training(config, {.resume = true, .device = Device::new_cpu()});
    CHECK(second.is_finished);
    CHECK(second.steps == unbroken.steps);
    CHECK(second.test.loss == unbroken.test.loss);
    CHECK(course(config.run_dir) == course(whole.run_dir));
    CHECK(files_of(snapshot_directory(config.run_dir, unbroken.steps)) == files_of(snapshot_directory(whole.run_dir, unbroken.steps)));
  }
}

TEST_CASE("run: killed after a snapshot, the steps done again overwrite what was logged beyond it") {
  const ScratchDirectory scratch;
  write_images(scratch);
  const Config whole = vit_config_in(scratch, "whole"), config = vit_config_in(scratch, "killed");
  run_training(whole, {.device = Device::new_cpu()});
  struct Killed {};
  const RunHooks kill{.on_step = [](const Progress& progress) {
    if (progress.step == 8) throw Killed();
  }};
  CHECK_THROWS_AS(run_training(config, {.device = Device::new_cpu()}, kill), Killed);
  CHECK(find_latest_snapshot(config.run_dir).latest == snapshot_directory(config.run_dir, 5));
  // Half a line, as a machine that lost power leaves it.
  { std::ofstream(fs::path(config.run_dir) / "metrics.jsonl", std::ios::app) << "{\"step\":9,\"lo"; }
  run_training(config, {.resume = true, .device = Device::new_cpu()});
  CHECK(course(config.run_dir) == course(whole.run_dir));
}

TEST_CASE("run: a torn newest snapshot is named and the one before it continued") {
  const ScratchDirectory scratch;
  write_images(scratch);
  Config config = vit_config_in(scratch, "torn");
  config.snapshot_every = 2;
  std::int64_t count = 0;
  run_training(config, {.device = Device::new_cpu()}, stop_after(4, count));
  fs::resize_file(snapshot_directory(config.run_dir, 4) / "model.safetensors", 100);
  std::string notes;
  std::int64_t first_step = 0;
  const RunHooks hooks{.on_step = [&](const Progress& progress) { if (first_step == 0) first_step = progress.step; },
                       .on_note = [&](const std::string& text) { notes += text + "\n"; }};
  const RunResult result = run_training(config, {.resume = true, .device = Device::new_cpu()}, hooks);
  CHECK(first_step == 3);
  CHECK(result.is_finished);
  CHECK(notes.find("step-4") != std::string::npos);
  CHECK(notes.find("expected") != std::string::npos);
  CHECK(notes.find("after step 2") != std::string::npos);
}

TEST_CASE("run: the directory holds the resolved configuration, the course in three forms, the report and the summary") {
  const ScratchDirectory scratch;
  write_images(scratch);
  const Config config = vit_config_in(scratch, "run");
  const Device device = Device::new_cpu();
  const RunResult result = run_training(config, {.device = device});
  const fs::path run_dir = config.run_dir;
  CHECK(load_config(run_dir / "config.toml", {}).image_size == 8);
  CHECK(course(run_dir).size() == std::size_t(result.steps) + 3);  // and an evaluation an epoch
  const std::string csv = read_text_file(run_dir / "metrics.csv");
  CHECK(csv.starts_with("step,epoch,loss,"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == result.steps + 4);
  const std::string summary = read_text_file(run_dir / "summary.json");
  for (const char* key : {"test_accuracy", "test_loss", "steps", "train_seconds", "samples_per_second", "peak_bytes", "reserved_peak_bytes",
                          "replayed_flops_share", "threads", "seed", "version"})
    CHECK(summary.find(concat('"', key, '"')) != std::string::npos);
  CHECK(summary.find(concat("\"total\": ", device.peak_bytes())) != std::string::npos);
  CHECK(read_text_file(run_dir / "report.txt").find("blocks.1.attention.qkv  parameter") != std::string::npos);
  std::size_t events = 0;
  for (const auto& entry : fs::directory_iterator(run_dir)) events += entry.path().filename().string().starts_with("events.out.tfevents.");
  CHECK(events == 1);
  CHECK(result.test.samples == 20);
  CHECK(fs::exists(snapshot_directory(run_dir, result.steps)));
  CHECK(std::distance(fs::directory_iterator(run_dir / "snapshots"), {}) == config.keep_snapshots);
  CHECK(run_evaluation(config, {.device = Device::new_cpu()}).loss == result.test.loss);
}

TEST_CASE("run: logging, snapshots and evaluations change no bit of the training") {
  const ScratchDirectory scratch;
  write_images(scratch);
  const Config often = vit_config_in(scratch, "often");
  Config seldom = vit_config_in(scratch, "seldom");
  seldom.log_every = 1000;
  seldom.snapshot_every = 0;
  seldom.eval_every = 0;
  const RunResult a = run_training(often, {.device = Device::new_cpu()}), b = run_training(seldom, {.device = Device::new_cpu()});
  CHECK(a.test.loss == b.test.loss);
  CHECK(read_text_file(snapshot_directory(often.run_dir, a.steps) / "model.safetensors") ==
        read_text_file(snapshot_directory(seldom.run_dir, b.steps) / "model.safetensors"));
}

TEST_CASE("run: checkpointing changes no bit of the training either") {
  const ScratchDirectory scratch;
  write_images(scratch);
  std::string expected;
  for (const char* policy : {"none", "block", "nested", "selective"}) {
    Config config = vit_config_in(scratch, policy);
    config.checkpoint = policy;
    if (config.checkpoint == "selective") config.checkpoint_keep = {"attention"};
    config.certify = true;
    const RunResult result = run_training(config, {.device = Device::new_cpu()});
    const std::string weights = read_text_file(snapshot_directory(config.run_dir, result.steps) / "model.safetensors");
    if (expected.empty()) expected = weights;
    CHECK(weights == expected);
  }
}

TEST_CASE("run: micro-batches draw the random numbers of the whole batch: accumulating changes only the order of sums") {
  const ScratchDirectory scratch;
  write_images(scratch);
  Config one = vit_config_in(scratch, "one"), four = vit_config_in(scratch, "four");
  one.batch = 16;
  one.accumulate = 1;
  four.batch = 4;
  four.accumulate = 4;
  one.optimizer = four.optimizer = "sgd";
  one.eval_batch = four.eval_batch = 20;
  const RunResult a = run_training(one, {.device = Device::new_cpu()}), b = run_training(four, {.device = Device::new_cpu()});
  CHECK(a.steps == b.steps);
  CHECK(a.test.loss == Approx(b.test.loss).epsilon(1e-4));
}

TEST_CASE("run: frozen parameters keep their bits and have no optimizer state") {
  const ScratchDirectory scratch;
  write_images(scratch);
  Config config = vit_config_in(scratch, "frozen");
  config.freeze = {"blocks.0.*"};
  Config resolved = config;
  adapt_to_data(resolved, *load_samples(config, Split::train));
  const std::shared_ptr<ChainModel> fresh = build_model(resolved, Device::new_cpu());
  const RunResult result = run_training(config, {.device = Device::new_cpu()});
  const SafetensorsFile model(snapshot_directory(config.run_dir, result.steps) / "model.safetensors");
  int frozen = 0, trained = 0;
  for (const NamedTensor& entry : fresh->named_parameters()) {
    const bool is_equal = model.read(entry.name).to_vector<float>() == entry.tensor.to_vector<float>();
    if (entry.name.starts_with("blocks.0.")) frozen += is_equal;
    else trained += !is_equal;
  }
  CHECK(frozen == 12);
  CHECK(trained == int(fresh->named_parameters().size()) - 12);
  const SafetensorsFile optimizer(snapshot_directory(config.run_dir, result.steps) / "optimizer.safetensors");
  CHECK(!optimizer.entries().empty());
  for (const SafetensorsFile::Entry& entry : optimizer.entries())
    CHECK(!entry.name.starts_with("blocks.0."));
}

TEST_CASE("run: a directory that holds a run is not overwritten, a seed that differs from the snapshot's is refused") {
  const ScratchDirectory scratch;
  write_images(scratch);
  Config config = vit_config_in(scratch, "run");
  config.epochs = 1;
  run_training(config, {.device = Device::new_cpu()});
  CHECK_THROWS_WITH(run_training(config, {.device = Device::new_cpu()}), Catch::Contains("holds a run already"));
  config.seed = 8;
  CHECK_THROWS_WITH(run_training(config, {.resume = true, .device = Device::new_cpu()}), Catch::Contains("was made with 7, got 8"));
}

TEST_CASE("run: a snapshot of another model is refused with what differs, before anything is read") {
  const ScratchDirectory scratch;
  write_images(scratch);
  Config config = vit_config_in(scratch, "run");
  config.epochs = 1;
  run_training(config, {.device = Device::new_cpu()});
  config.depth = 3;
  CHECK_THROWS_WITH(run_evaluation(config, {.device = Device::new_cpu()}), Catch::Contains("'blocks.2.norm1.weight' is missing"));
  config.depth = 1;
  CHECK_THROWS_WITH(run_evaluation(config, {.device = Device::new_cpu()}), Catch::Contains("'blocks.1.norm1.weight' is unexpected"));
  config.depth = 2;
  config.width = 32;
  CHECK_THROWS_AS(run_evaluation(config, {.device = Device::new_cpu()}), DataError);
}

TEST_CASE("run: a memory limit that is too small is an OutOfMemory that names the module") {
  const ScratchDirectory scratch;
  write_images(scratch);
  Config config = vit_config_in(scratch, "run");
  config.memory_limit = {100'000};
  CHECK_THROWS_AS(run_training(config, {.device = Device::new_cpu()}), OutOfMemory);
}

TEST_CASE("run: all memory is given back at its end, and the tape is empty") {
  const ScratchDirectory scratch;
  write_images(scratch);
  const Device device = Device::new_cpu();
  run_training(vit_config_in(scratch, "run"), {.device = device});
  CHECK(device.live_bytes() == 0);
  CHECK(tape_size() == 0);
}

TEST_CASE("run: what data and configuration say must agree") {
  const ScratchDirectory scratch;
  write_images(scratch);
  Config config = vit_config_in(scratch, "run");
  config.image_size = 28;
  CHECK_THROWS_WITH(run_training(config), Catch::Contains("image_size"));
  config.image_size = 0;
  config.patch_size = 5;
  CHECK_THROWS_WITH(run_training(config), Catch::Contains("patch_size: expected a divisor of image_size = 8, got 5"));
  config.patch_size = 4;
  config.num_classes = 1;
  CHECK_THROWS_WITH(run_training(config), Catch::Contains("label 1 of sample 1 is not below 1"));
  CHECK(!fs::exists(config.run_dir));
}

TEST_CASE("run: stopped after 20 of an epoch's samples, the rest follow in their order with their own random numbers") {
  const ScratchDirectory scratch;
  write_images(scratch);
  const auto config_for = [&](const std::string& run) {
    Config config = vit_config_in(scratch, run);
    config.batch = config.accumulate = 1;
    config.epochs = 2;
    config.snapshot_every = 0;
    return config;
  };
  const Config whole = config_for("whole"), broken = config_for("broken");
  run_training(whole, {.device = Device::new_cpu()});
  std::int64_t count = 0;
  run_training(broken, {.device = Device::new_cpu()}, stop_after(20, count));
  run_training(broken, {.resume = true, .device = Device::new_cpu()});
  CHECK(course(broken.run_dir) == course(whole.run_dir));
}

TEST_CASE("run: 1,000 steps with logging leave memory, tape and the process's size where they were") {
  const ScratchDirectory scratch;
  write_images(scratch);
  Config config = vit_config_in(scratch, "long");
  config.epochs = 250;
  config.max_steps = 1000;
  config.snapshot_every = config.eval_every = 0;
  const Device device = Device::new_cpu();
  const auto resident_bytes = [] {
    std::int64_t total = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> total >> resident;
    return resident * ::sysconf(_SC_PAGESIZE);
  };
  struct Standing {
    std::int64_t live, count, records, reserved;
    bool operator==(const Standing&) const = default;
  };
  const auto standing = [&] { return Standing{device.live_bytes(), device.live_count(), tape_size(), device.reserved_bytes()}; };
  Standing at_10{}, at_1000{};
  std::int64_t resident_at_100 = 0, resident_at_1000 = 0;
  const RunHooks hooks{.on_step = [&](const Progress& progress) {
    if (progress.step == 10) at_10 = standing();
    if (progress.step == 100) resident_at_100 = resident_bytes();
    if (progress.step == 1000) at_1000 = standing(), resident_at_1000 = resident_bytes();
  }};
  run_training(config, {.device = device}, hooks);
  CHECK(at_1000 == at_10);
  CHECK(at_1000.records == 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they keep what was freed
  CHECK(resident_at_1000 - resident_at_100 < 1 << 20);
#endif
}

TEST_CASE("run: a plan takes the same steps and reaches the same peak to the byte, under every checkpoint policy") {
  const ScratchDirectory scratch;
  write_images(scratch);
  for (const char* policy : {"none", "block", "nested"}) {
    Config config = vit_config_in(scratch, policy);
    config.checkpoint = policy;
    const std::shared_ptr<const Samples> samples = load_samples(config, Split::train);
    adapt_to_data(config, *samples);
    std::vector<std::int64_t> peaks;
    std::vector<BytesPerKind> kinds;
    for (const Device& device : {Device::new_cpu(), Device::plan()}) {
      const std::shared_ptr<ChainModel> model = build_model(config, device);
      const std::unique_ptr<Optimizer> optimizer = build_optimizer(config, parameter_groups(config, *model));
      Loader loader(samples, {.batch = config.batch, .device = device});
      Trainer trainer(loader, *optimizer, build_schedule(config, 4), loss_function(build_loss(config, model)),
                      {.accumulate = 2, .clip_norm = 1});
      for (int i = 0; i < 4; ++i) CHECK(trainer.step()->samples == (i < 3 ? 16 : 2));
      peaks.push_back(device.peak_bytes());
      kinds.push_back(device.ledger().kinds_at_peak());
    }
    CHECK(peaks[0] == peaks[1]);
    CHECK(kinds[0] == kinds[1]);
  }
}
