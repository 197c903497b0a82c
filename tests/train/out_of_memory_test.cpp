// Out of memory at any point of a training: what the exception says, and that the engine goes on as if nothing had happened.
#include <refrain/autograd/tape.h>
#include <refrain/core/storage.h>
#include <refrain/core/io/file.h>
#include <refrain/optim/adam.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/images.h>
#include <refrain/tests/support/scratch_directory.h>
#include <refrain/train/plan.h>
#include <refrain/train/program.h>
#include <refrain/train/run.h>
#include <refrain/train/setup.h>

#include <limits>
#include <set>

#include <nlohmann/json.hpp>

using namespace refrain;
using refrain::testing::ScratchDirectory;
using refrain::testing::write_images;
using Catch::Contains;

namespace {

constexpr std::int64_t kNoLimit = std::numeric_limits<std::int64_t>::max();

Config config_in(const ScratchDirectory& scratch) {
  Config config;
  config.patch_size = 2;
  config.width = 32;
  config.depth = 3;
  config.num_heads = 2;
  config.data_path = scratch / "data";
  config.batch = 16;
  config.epochs = 1;
  config.lr = 0.01;
  config.snapshot_every = 0;
  config.checkpoint = "block";
  config.packing = "online";
  return config;
}

// All that a device and this thread remember of what is alive.
struct State {
  explicit State(const Device& device)
      : live(device.live_bytes()), count(device.live_count()), held(device.state().arena.live_bytes()), records(tape_size()),
        module(thread_context().module), op(thread_context().op), phase(thread_context().phase), kind(thread_context().kind) {
    for (int k = 0; k < kNumMemoryKinds; ++k) kinds[std::size_t(k)] = device.live_bytes(MemoryKind(k));
  }
  friend bool operator==(const State&, const State&) = default;
  std::int64_t live, count, held, records;
  const ModulePath* module;
  std::string_view op;
  Phase phase;
  MemoryKind kind;
  BytesPerKind kinds{};
};

std::unique_ptr<Program> program_on(const Config& config, const Device& device) {
  return std::make_unique<Program>(config, load_samples(config, Split::train), load_samples(config, Split::test), device);
}

// The phase that the message names: "… asked for N bytes (KIND, PHASE); …".
std::string phase_in(const std::string& text) {
  const std::size_t end = text.find(")", text.find(" bytes (")), begin = text.rfind(", ", end);
  return text.substr(begin + 2, end - begin - 2);
}

double train(const Config& config, const Device& device) {
  run_training(config, {.device = device});
  return nlohmann::json::parse(read_text_file(std::filesystem::path(config.run_dir) / "summary.json"))["test_loss"].get<double>();
}

}  // namespace

TEST_CASE("out of memory: in forward, replay or backward, all that was made since is given back") {
  const ScratchDirectory scratch;
  write_images(scratch);
  const Config config = config_in(scratch);
  const Device whole = Device::new_cpu();
  const auto unlimited = program_on(config, whole);
  const std::int64_t before = whole.reserved_bytes();
  unlimited->trainer->step();
  const std::int64_t after = whole.reserved_bytes();
  const std::vector<float> expected = unlimited->model->parameters().front().to_vector<float>();
  std::set<std::string> phases;
  for (int i = 0; i < 48; ++i) {
    const std::int64_t limit = before + (after - before) * i / 48;
    const Device device = Device::new_cpu();
    const auto program = program_on(config, device);
    const State state(device);
    const LoaderState position = program->loader->state();
    device.set_memory_limit(limit, "a test");
    try {
      program->trainer->step();
      FAIL("expected OutOfMemory below " << after << " bytes");
    } catch (const OutOfMemory& error) {
      CHECK_THAT(error.what(), Contains("in module '") && Contains("largest hole") && Contains(std::to_string(limit) + " (a test)"));
      CHECK(error.limit == limit);
      CHECK(error.requested > 0);
      CHECK(error.reserved <= limit);
      CHECK(error.reserved + error.requested > limit);
      CHECK(error.held <= error.reserved);
      CHECK(error.largest_hole < Arena::rounded(error.requested));
      phases.insert(phase_in(error.what()));
    }
    program->optimizer->zero_grad();
    CHECK(State(device) == state);
    // With the limit lifted the same step has the same bits as if nothing had happened.
    device.set_memory_limit(kNoLimit);
    program->loader->set_state(position);
    program->trainer->step();
    CHECK(program->model->parameters().front().to_vector<float>() == expected);
  }
  CHECK(phases == std::set<std::string>{"forward", "replay", "backward"});
}

TEST_CASE("out of memory: in an update, which takes next to nothing, parameters and gradients stay as they were") {
  const Device device = Device::new_cpu();
  const auto step_of = [&](bool is_full) {
    const Tensor parameter = full({100}, 1, DType::f32, device);
    set_requires_grad(parameter);
    Adam optimizer({{.parameters = {parameter}}}, {});
    set_grad(parameter, full({100}, 0.5, DType::f32, device));
    if (is_full) {
      std::vector<Tensor> hogs;
      device.set_memory_limit(device.reserved_bytes());
      while (const std::int64_t hole = device.state().arena.largest_hole()) hogs.push_back(empty({hole}, DType::u8, device));
      const State state(device);
      const std::string message = [&] {
        try {
          optimizer.step(0.1);
        } catch (const OutOfMemory& error) {
          return std::string(error.what());
        }
        return std::string();
      }();
      CHECK(phase_in(message) == "update");
      CHECK(State(device) == state);
      CHECK(parameter.to_vector<float>() == std::vector<float>(100, 1));
      device.set_memory_limit(kNoLimit);
    }
    optimizer.step(0.1);
    return parameter.to_vector<float>();
  };
  CHECK(step_of(true) == step_of(false));
  CHECK(device.live_count() == 0);
}

TEST_CASE("out of memory: a run that ends with it leaves its device empty, and a smaller one then runs there within the same limit") {
  const ScratchDirectory scratch;
  write_images(scratch);
  for (const char* packing : {"online", "plan"}) {
    Config large = config_in(scratch), small = large;
    large.packing = small.packing = packing;
    large.optimizer = small.optimizer = "adamw";
    small.batch = 2;
    small.run_dir = scratch / (std::string("fresh-") + packing);
    const double expected = train(small, Device::new_cpu());
    const std::int64_t fits = plan_training(small).reserved_bytes, needed = plan_training(large).reserved_bytes;
    REQUIRE(fits * 11 / 10 < needed);
    for (int i = 0; i < 6; ++i) {
      const std::int64_t limit = fits * 11 / 10 + (needed - 64 - fits * 11 / 10) * i / 5;
      const Device device = Device::new_cpu();
      large.memory_limit = small.memory_limit = {limit};
      large.run_dir = scratch / (std::string(packing) + "-large-" + std::to_string(i));
      small.run_dir = scratch / (std::string(packing) + "-small-" + std::to_string(i));
      if (i < 5) CHECK_THROWS_WITH(train(large, device), Contains("(memory_limit)"));
      CHECK(device.live_count() == 0);
      CHECK(device.live_bytes() == 0);
      CHECK(device.state().arena.live_bytes() == 0);
      CHECK(device.state().arena.largest_hole() == device.reserved_bytes());
      CHECK(tape_size() == 0);
      CHECK(train(small, device) == expected);
      CHECK(device.reserved_bytes() <= limit);
      CHECK(device.live_count() == 0);
    }
  }
}

TEST_CASE("out of memory: without a limit it is what system and control group had free, for the run alone; a lower one stays") {
  const ScratchDirectory scratch;
  write_images(scratch);
  Config config = config_in(scratch);
  config.run_dir = scratch / "run";
  const Device device = Device::new_cpu();
  const std::int64_t before = device.memory_limit();
  int num_steps = 0;
  const auto look = [&](const Progress&) {
    if (num_steps++ > 0) return;
    CHECK(device.memory_limit() > device.reserved_bytes());
    CHECK(device.memory_limit() < before);
    CHECK_THROWS_WITH(empty({device.memory_limit() + 64}, DType::u8, device), Contains("control group had free at the start"));
  };
  run_training(config, {.device = device}, {.on_step = look});
  CHECK(num_steps > 0);
  CHECK(device.memory_limit() == before);

  const Device small = Device::new_cpu();
  small.set_memory_limit(1 << 16, "mine");
  config.run_dir = scratch / "small";
  CHECK_THROWS_WITH(run_training(config, {.device = small}), Contains("65536 (mine)"));
  CHECK(small.memory_limit() == 1 << 16);
}

TEST_CASE("run: a second run on one device tells its own peak, and its limit holds") {
  const ScratchDirectory scratch;
  write_images(scratch);
  const Device device = Device::new_cpu();
  Config large = config_in(scratch), little = config_in(scratch);
  large.batch = 16;
  little.batch = 2;
  large.run_dir = scratch / "large";
  little.run_dir = scratch / "little";
  run_training(large, {.device = device});
  const RunResult result = run_training(little, {.device = device});
  const Plan plan = plan_training(little);
  CHECK(result.peak_bytes == plan.ledger.peak_bytes());
  CHECK(device.reserved_bytes() == plan.reserved_bytes);
  large.memory_limit.value = plan.reserved_bytes;
  large.run_dir = scratch / "limited";
  CHECK_THROWS_AS(run_training(large, {.device = device}), OutOfMemory);
}

TEST_CASE("steps: after the first of each kind the arena does not grow, packed or not") {
  const ScratchDirectory scratch;
  write_images(scratch);
  for (const char* packing : {"online", "plan"}) {
    for (const char* checkpoint : {"none", "block", "nested"}) {
      for (const std::int64_t accumulate : {1, 2}) {
        Config config = config_in(scratch);
        config.packing = packing;
        config.checkpoint = checkpoint;
        config.accumulate = accumulate;
        config.optimizer = "adamw";
        config.epochs = 6;
        config.eval_every = 1;
        config.run_dir = scratch / (std::string(packing) + checkpoint + std::to_string(accumulate));
        const Device device = Device::new_cpu();
        std::vector<std::int64_t> after_epoch;
        const auto note = [&](std::int64_t, double, const Evaluation&) { after_epoch.push_back(device.reserved_bytes()); };
        run_training(config, {.device = device}, {.on_evaluation = note});
        REQUIRE(after_epoch.size() == 6);
        // The first epoch holds each kind of step once, the evaluation too; the second meets the arena as the first has left it.
        const std::size_t settled = std::string(packing) == "plan" ? 0 : 1;
        CHECK(after_epoch[settled] == after_epoch.back());
        if (settled == 0) CHECK(after_epoch.back() == plan_training(config).layout->end);
      }
    }
  }
}
