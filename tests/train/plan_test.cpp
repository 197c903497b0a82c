// Plan = run: the forecast of memory and work against the training itself, to the byte, over the options that shape memory.
#include <refrain/core/io/file.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/train/check_plan.h>
#include <refrain/tests/train/memory_fixture.h>
#include <refrain/train/plan.h>
#include <refrain/train/plan_report.h>
#include <refrain/train/planned_data.h>
#include <refrain/train/run.h>

#include <nlohmann/json.hpp>

using namespace refrain;
using refrain::testing::check_plan;
using refrain::testing::composition;
using refrain::testing::ScratchDirectory;
using refrain::testing::small_gpt2;
using refrain::testing::small_vit;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

constexpr const char* kPrecisions[] = {"32-true", "16-mixed", "bf16-mixed", "16-true", "bf16-true"};
constexpr const char* kCheckpoints[] = {"none", "block", "nested", "selective"};

// Every precision with every policy; optimizers, windows and clipping take turns, so that each meets each.
void check_precisions_and_policies(const ScratchDirectory& scratch, const Config& base) {
  int turn = 0;
  for (const char* precision : kPrecisions) {
    for (const char* checkpoint : kCheckpoints) {
      Config config = base;
      config.precision = precision;
      config.checkpoint = checkpoint;
      if (config.checkpoint == "selective") config.checkpoint_keep = {"attention"};
      config.optimizer = turn % 3 == 0 ? "adamw" : "sgd";
      config.momentum = turn % 3 == 1 ? 0.9 : 0;
      config.accumulate = turn % 2 == 0 ? 3 : 1;
      config.clip_norm = turn / 2 % 2 == 0 ? 0 : 1;
      config.dropout = turn / 3 % 2 == 0 ? 0 : 0.1;
      config.eval_batch = turn % 5 == 0 ? 13 : 0;
      check_plan(scratch, config);
      ++turn;
    }
  }
}

}  // namespace

TEST_CASE("plan: peak and reserved bytes of a vision transformer are the run's in every precision and policy", "[sweep]") {
  const ScratchDirectory scratch;
  check_precisions_and_policies(scratch, small_vit(scratch));
}

TEST_CASE("plan: peak and reserved bytes of a decoder are the run's in every precision and policy", "[sweep]") {
  const ScratchDirectory scratch;
  check_precisions_and_policies(scratch, small_gpt2(scratch));
}

TEST_CASE("plan: every optimizer in every precision, with windows of one and of three", "[sweep]") {
  const ScratchDirectory scratch;
  for (const char* precision : kPrecisions) {
    for (const auto& [optimizer, momentum] : {std::pair("sgd", 0.0), std::pair("sgd", 0.9), std::pair("adamw", 0.0)}) {
      for (const std::int64_t accumulate : {1, 3}) {
        Config config = small_vit(scratch);
        config.depth = 2;
        config.epochs = 1;
        config.precision = precision;
        config.optimizer = optimizer;
        config.momentum = momentum;
        config.accumulate = accumulate;
        check_plan(scratch, config);
      }
    }
  }
}

TEST_CASE("plan: evaluations whose batches are larger or smaller than the training's, often or at the end", "[sweep]") {
  const ScratchDirectory scratch;
  for (const std::int64_t eval_batch : {1, 3, 19, 20, 100}) {
    for (const std::int64_t eval_every : {0, 1, 2}) {
      Config config = small_vit(scratch);
      config.checkpoint = "block";
      config.epochs = 3;
      config.eval_batch = eval_batch;
      config.eval_every = eval_every;
      check_plan(scratch, config);
    }
  }
}

TEST_CASE("plan: windows of many micro-batches, epochs of one short window, and a number of steps that ends anywhere", "[sweep]") {
  const ScratchDirectory scratch;
  for (const std::int64_t accumulate : {2, 5, 6, 7, 100}) {
    for (const std::int64_t batch : {1, 4, 64}) {
      Config config = small_gpt2(scratch);
      config.depth = 2;
      config.batch = batch;
      config.accumulate = accumulate;
      config.precision = batch == 4 ? "bf16-mixed" : "32-true";
      check_plan(scratch, config);
    }
  }
  for (const std::int64_t max_steps : {1, 2, 3, 7, 8}) {
    Config config = small_vit(scratch);
    config.accumulate = 3;
    config.epochs = 0;
    config.max_steps = max_steps;
    check_plan(scratch, config);
  }
}

TEST_CASE("plan: updates inside backward, in windows of any length") {
  const ScratchDirectory scratch;
  int turn = 0;
  for (const Config& base : {small_vit(scratch), small_gpt2(scratch)}) {
    for (const char* precision : {"32-true", "bf16-mixed", "bf16-true"}) {
      for (const char* checkpoint : kCheckpoints) {
        Config config = base;
        config.update = "fused";
        config.precision = precision;
        config.checkpoint = checkpoint;
        config.optimizer = turn % 2 == 0 ? "adamw" : "sgd";
        config.accumulate = 1 + 2 * (turn % 3);
        check_plan(scratch, config);
        ++turn;
      }
    }
  }
  Config refused = small_vit(scratch);
  refused.update = "fused";
  refused.clip_norm = 1;
  CHECK_THROWS_AS(plan_training(refused), InvalidArgument);
}

TEST_CASE("plan: frozen parameters, loss scales, master copies, f32 state, rounding, certificates and random layers") {
  const ScratchDirectory scratch;
  Config frozen = small_vit(scratch);
  frozen.freeze = {"embed.*", "blocks.0.*", "blocks.2.mlp.*"};
  for (const char* checkpoint : kCheckpoints) {
    frozen.checkpoint = checkpoint;
    check_plan(scratch, frozen);
  }
  for (const char* loss_scale : {"off", "static", "dynamic"}) {
    Config config = small_gpt2(scratch);
    config.precision = "16-mixed";
    config.checkpoint = "nested";
    config.checkpoint_levels = 1;
    config.loss_scale = loss_scale;
    config.loss_scale_init = 1024;
    config.loss_scale_interval = 2;
    check_plan(scratch, config);
  }
  Config overflowing = small_vit(scratch);
  overflowing.precision = "16-mixed";
  overflowing.loss_scale_init = 0x1p24;
  overflowing.loss_scale_max = 0x1p24;
  overflowing.accumulate = 3;
  check_plan(scratch, overflowing);
  for (const bool master : {false, true}) {
    Config config = small_vit(scratch);
    config.precision = "bf16-true";
    config.optimizer = "adam";
    config.master_weights = master;
    config.optimizer_state = "f32";
    config.rounding = master ? "nearest" : "stochastic";
    check_plan(scratch, config);
  }
  Config random = small_vit(scratch);
  random.dropout = random.attention_dropout = random.stochastic_depth = 0.2;
  random.label_smoothing = 0.1;
  random.checkpoint = "block";
  random.certify = true;
  random.flip = true;
  check_plan(scratch, random);
}

TEST_CASE("plan: a training that goes on in this thread keeps its bits, its ledger and its counts") {
  const ScratchDirectory scratch;
  const auto train = [&](const std::string& name, const RunHooks& hooks) {
    Config config = small_vit(scratch);
    config.dropout = 0.1;
    config.stochastic_depth = 0.1;
    config.accumulate = 2;
    config.checkpoint = "block";
    config.run_dir = scratch / name;
    const Device device = Device::new_cpu();
    run_training(config, {.device = device}, hooks);
    const nlohmann::json summary = nlohmann::json::parse(read_text_file(scratch / name / "summary.json"));
    return std::tuple(summary["test_loss"].get<double>(), summary["flops"].get<double>(), summary["replayed_flops_share"].get<double>(),
                      device.peak_bytes(), device.reserved_bytes(), composition(device.ledger()),
                      read_text_file(scratch / name / "snapshots/step-8/model.safetensors"));
  };
  const auto alone = train("alone", {});
  Config other = small_gpt2(scratch);
  other.precision = "bf16-mixed";
  other.seed = 5;
  other.memory_limit = {1};
  const std::int64_t before = Device::cpu().peak_bytes();
  const auto accompanied = train("accompanied", {.on_step = [&](const Progress&) { plan_training(other); }});
  CHECK(alone == accompanied);
  CHECK(Device::cpu().peak_bytes() == before);
}

TEST_CASE("plan: a training of a billion epochs is planned like one of ten") {
  Config config;
  config.data_path = "/nonexistent";
  config.image_size = 28;
  config.depth = 1;
  config.epochs = 1'000'000'000;
  for (const std::int64_t batch : {64, 60000, 100000}) {
    for (const std::int64_t eval_every : {0, 1, 999'999'999}) {
      config.batch = batch;
      config.eval_batch = 100;
      config.eval_every = eval_every;
      const Plan plan = plan_training(config);
      CHECK(plan.steps == 1'000'000'000 * plan.steps_per_epoch);
      CHECK(plan.evaluations == (eval_every == 1 ? 1'000'000'000 : eval_every == 0 ? 1 : 2));
      Config ten = config;
      ten.epochs = 10;
      const Plan shorter = plan_training(ten);
      CHECK(plan.ledger.peak_bytes() == shorter.ledger.peak_bytes());
      CHECK(plan.reserved_bytes == shorter.reserved_bytes);
    }
  }
}

TEST_CASE("plan: works without data, says what it assumed, and names the key of a size that nothing tells") {
  Config config;
  config.data_path = "/nonexistent/data";
  CHECK_THROWS_WITH(plan_training(config), Contains("image_size"));
  config.image_size = 28;
  const Plan plan = plan_training(config);
  CHECK(plan.num_train == 60000);
  CHECK(plan.num_test == 10000);
  CHECK(plan.config.channels == 1);
  CHECK(plan.config.num_classes == 10);
  CHECK(plan.steps == 938);
  REQUIRE(plan.notes.size() == 2);
  CHECK_THAT(plan.notes[0], Contains("/nonexistent/data"));
  CHECK_THAT(plan.notes[1], Contains("60000") && Contains("10000"));
  CHECK(plan_training(config, {.num_train = 128, .num_test = 1}).steps == 2);

  Config text;
  text.model = "gpt2";
  text.data_format = "text";
  text.data_path = "/nonexistent/text";
  CHECK(plan_training(text).steps == 938);
  text.vocab = 100;
  CHECK_THROWS_WITH(plan_training(text), Contains("vocab"));
}

TEST_CASE("planned data: sizes come from headers, and images unlike the configuration's count as absent") {
  const ScratchDirectory scratch;
  Config config = small_vit(scratch);
  const PlannedData found = find_planned_data(config);
  CHECK(found.is_found);
  CHECK(found.notes.empty());
  CHECK(found.train.size == 50);
  CHECK(found.test.size == 20);
  CHECK(found.train.input_shape == Shape{1, 8, 8});
  CHECK(find_planned_data(config, 7).train.size == 7);

  config.image_size = 224;
  config.channels = 3;
  const PlannedData unlike = find_planned_data(config);
  CHECK(!unlike.is_found);
  CHECK(unlike.train.input_shape == Shape{3, 224, 224});
  REQUIRE(unlike.notes.size() == 2);
  CHECK_THAT(unlike.notes[0], Contains("as configured"));

  scratch.write("data/train-images-idx3-ubyte", "damaged");
  CHECK_THAT(find_planned_data(config).notes.at(0), Contains("train-images-idx3-ubyte"));

  Config cifar;
  cifar.data_format = "cifar10";
  cifar.data_path = scratch / "cifar";
  CHECK(find_planned_data(cifar).train.input_shape == Shape{3, 32, 32});
  for (int i = 1; i <= 5; ++i) scratch.write("cifar/data_batch_" + std::to_string(i) + ".bin", std::string(std::size_t(i * 3073), '\0'));
  scratch.write("cifar/test_batch.bin", std::string(2 * 3073, '\0'));
  CHECK(find_planned_data(cifar).train.size == 15);
  CHECK(find_planned_data(cifar).test.size == 2);
  CHECK(find_planned_data(small_gpt2(scratch)).train.size == (630 - 1) / 12);
}

TEST_CASE("plan: measuring the machine gives rates for every precision and leaves the caller's counts alone") {
  Config config;
  config.image_size = 28;
  const double flops = cost_meter().total.flops;
  const std::int64_t bytes = Device::cpu().peak_bytes();
  for (const char* precision : {"32-true", "16-mixed", "bf16-true"}) {
    config.precision = precision;
    const MachineRates rates = measure_rates(config).value();
    CHECK(rates.flops_per_second > 0);
    CHECK(rates.bytes_per_second > 0);
  }
  CHECK(cost_meter().total.flops == flops);
  CHECK(Device::cpu().peak_bytes() == bytes);
}

TEST_CASE("plan: report and JSON carry the same numbers; the limit is compared with what is reserved") {
  Config config;
  config.data_path = "/nonexistent";
  config.image_size = 28;
  config.checkpoint = "block";
  Plan plan = plan_training(config);
  plan.config.memory_limit = {plan.reserved_bytes};
  plan.rates = MachineRates{1e9, 1e9};
  const nlohmann::json json = nlohmann::json::parse(plan_json(plan));
  CHECK(json["peak_bytes"]["total"] == plan.ledger.peak_bytes());
  CHECK(json["reserved_peak_bytes"] == plan.reserved_bytes);
  CHECK(json["fits"] == true);
  std::int64_t sum = 0;
  for (const nlohmann::json& entry : json["peak_by_module"]) sum += entry["bytes"].get<std::int64_t>();
  CHECK(sum == plan.ledger.peak_bytes());
  CHECK(json["estimate"]["step_seconds"].get<double>() == (plan.step.total.flops + plan.step.total.bytes) / 1e9);
  CHECK(plan.run_seconds() > 938 * plan.step_seconds() * 0.9);
  const std::string text = plan_report(plan);
  CHECK_THAT(text, Contains(std::to_string(plan.ledger.peak_bytes())) && Contains(std::to_string(plan.reserved_bytes)) &&
                       Contains("estimate") && Contains("holds"));
  plan.rates.reset();
  plan.config.memory_limit = {plan.reserved_bytes - 1};
  CHECK_THAT(plan_report(plan), !Contains("estimate") && Contains("too low"));
  CHECK(!nlohmann::json::parse(plan_json(plan)).contains("estimate"));
}
