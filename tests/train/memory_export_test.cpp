// Memory on disk: JSON that adds up, a CSV with a row per block, a trace that a viewer accepts, and a plan's curve that is the run's.
#include <refrain/core/io/file.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/train/memory_fixture.h>
#include <refrain/train/memory_blocks.h>
#include <refrain/train/memory_export.h>

#include <map>

#include <nlohmann/json.hpp>

using namespace refrain;
using namespace refrain::testing;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

MemoryExport export_of(const Plan& plan) {
  MemoryExport out{.title = "a \"plan\"", .config = plan.config, .reserved_bytes = plan.reserved_bytes, .timeline = *plan.timeline,
                   .receipt = make_receipt(*plan.timeline, plan.ledger.peak_bytes())};
  return out;
}

std::int64_t highest(const json& curve) {
  std::int64_t most = 0;
  for (std::size_t i = 0; i < curve["ticks"].size(); ++i) {
    std::int64_t total = 0;
    for (const json& bytes : curve["bytes"]) total += bytes[i].get<std::int64_t>();
    most = std::max(most, total);
  }
  return most;
}

void check_json(const json& memory, std::int64_t peak) {
  CHECK(memory["peak_bytes"] == peak);
  CHECK(memory["unknown_bytes"] == 0);
  std::int64_t sum = 0, groups = 0;
  for (const json& block : memory["peak"]["blocks"]) {
    REQUIRE(block.size() == 8);
    sum += block[1].get<std::int64_t>();
    CHECK(block[2] < memory["kinds"].size());
    CHECK(block[3] < memory["phases"].size());
    CHECK(block[4] < memory["modules"].size());
    CHECK(block[5] < memory["ops"].size());
  }
  for (const json& group : memory["groups"]) groups += group["bytes"].get<std::int64_t>();
  CHECK(sum == peak);
  CHECK(groups == peak);
  for (const json& bytes : memory["curve"]["bytes"]) CHECK(bytes.size() == memory["curve"]["ticks"].size());
  CHECK(memory["curve"]["ticks"].size() <= kMostCurvePoints);
  CHECK(memory["config"]["batch"] == 8);
}

void check_trace(const std::string& text) {
  const json trace = json::parse(text);
  double last = 0;
  std::int64_t depth = 0, counters = 0;
  std::map<std::pair<std::string, int>, int> open;
  for (const json& event : trace["traceEvents"]) {
    CHECK(event["ts"].get<double>() >= last);
    last = event["ts"];
    const std::string phase = event["ph"];
    if (phase == "B") ++depth;
    if (phase == "E") --depth;
    CHECK((depth == 0 || depth == 1));
    if (phase == "C") ++counters;
    if (phase == "b") CHECK(++open[{event["id"], event["pid"]}] == 1);
    if (phase == "e") CHECK(--open[{event["id"], event["pid"]}] == 0);
  }
  CHECK(depth == 0);
  CHECK(counters > 0);
  CHECK(!open.empty());
  for (const auto& [id, count] : open) CHECK(count == 0);
}

void check_csv(const std::string& csv, std::int64_t peak) {
  std::int64_t sum = 0;
  std::size_t rows = 0;
  for (std::size_t begin = csv.find('\n') + 1; begin < csv.size(); begin = csv.find('\n', begin) + 1, ++rows) {
    const std::string row = csv.substr(begin, csv.find('\n', begin) - begin);
    CHECK(std::count(row.begin(), row.end(), ',') == 8);
    if (row.ends_with(",1")) sum += std::stoll(row.substr(row.find(',') + 1));
  }
  CHECK(sum == peak);
  CHECK(rows > 0);
}

}  // namespace

TEST_CASE("memory export: of a plan, JSON adds up, every block has a row, and the trace is in order") {
  const ScratchDirectory scratch;
  for (const Config& config : {small_vit(scratch), small_gpt2(scratch)}) {
    const Plan plan = plan_training(config, {.timeline = true});
    const MemoryExport what = export_of(plan);
    const json memory = json::parse(memory_json(what));
    check_json(memory, plan.ledger.peak_bytes());
    CHECK(memory["title"] == "a \"plan\"");
    CHECK(memory["planned"] == true);
    CHECK(memory["reserved_bytes"] == plan.reserved_bytes);
    CHECK(memory["planned_curve"].is_null());
    CHECK(memory["metrics"].is_null());
    CHECK(highest(memory["curve"]) == plan.ledger.peak_bytes());
    CHECK(memory["blocks"].size() == plan.timeline->blocks().size());
    const std::string csv = memory_csv(what);
    CHECK(std::size_t(std::count(csv.begin(), csv.end(), '\n')) == plan.timeline->blocks().size() + 1);
    check_csv(csv, plan.ledger.peak_bytes());
    CHECK_THAT(csv, Catch::Contains(",saved,forward,blocks.1.mlp.fc1,linear,") && !Catch::Contains("\""));
    check_trace(memory_trace(what));
  }
}

TEST_CASE("memory export: a run with a timeline leaves files in which the plan's curve is the measured one") {
  const ScratchDirectory scratch;
  for (Config config : {small_vit(scratch), small_gpt2(scratch)}) {
    config.optimizer = "adamw";
    config.accumulate = 2;
    config.checkpoint = "block";
    config.log_every = 1;
    if (config.model == "gpt2") {
      config.accumulate_schedule = "layerwise";
      config.update = "fused";
    }
    const std::string run_dir = scratch / ("run-" + config.model);
    const MeasuredTimeline measured = measure(config, run_dir, 2);
    const json memory = json::parse(read_text_file(fs::path(run_dir) / "memory.json"));
    check_json(memory, measured.peak_bytes);
    CHECK(memory["planned"] == false);
    CHECK(memory["reserved_bytes"] == measured.reserved_bytes);
    CHECK(memory["peak"]["moment"].get<std::string>().starts_with("step "));
    CHECK(memory["curve"]["ticks"] == memory["planned_curve"]["ticks"]);
    CHECK(memory["curve"]["seconds"] == memory["planned_curve"]["seconds"]);
    CHECK(memory["curve"]["bytes"] == memory["planned_curve"]["bytes"]);
    CHECK(memory["metrics"]["step"].size() == memory["metrics"]["loss"].size());
    CHECK(memory["metrics"]["step"].size() > 3);
    CHECK(memory["metrics"]["test_accuracy"].size() == 2);
    check_csv(read_text_file(fs::path(run_dir) / "memory.csv"), measured.peak_bytes);
    check_trace(read_text_file(fs::path(run_dir) / "trace.json"));
    CHECK(fs::file_size(fs::path(run_dir) / "report.html") > 1000);
  }
}

TEST_CASE("memory export: the steps asked for are kept with their evaluations, each marked once; the plan's curve begins with the first") {
  const ScratchDirectory scratch;
  Config config = small_vit(scratch);
  config.batch = 25;
  config.epochs = 6;  // of two steps
  const auto labels_of = [&](std::int64_t steps) {
    const std::string run_dir = scratch / ("run-" + std::to_string(steps));
    measure(config, run_dir, steps);
    const json memory = json::parse(read_text_file(fs::path(run_dir) / "memory.json"));
    std::vector<std::string> labels;
    for (const json& mark : memory["marks"]) {
      CHECK((labels.empty() || mark["tick"] > memory["marks"][labels.size() - 1]["tick"]));  // no empty part
      labels.push_back(mark["label"]);
    }
    const json &ticks = memory["curve"]["ticks"], &planned = memory["planned_curve"]["ticks"];
    const std::size_t shift = ticks.size() - planned.size();
    CHECK((shift > 0) == (labels.front() == "build"));
    for (std::size_t i = 0; i < planned.size(); ++i) {
      REQUIRE(planned[i] == ticks[i + shift]);
      for (const auto& [kind, bytes] : memory["planned_curve"]["bytes"].items())
        REQUIRE(bytes[i] == memory["curve"]["bytes"][kind][i + shift]);
    }
    return labels;
  };
  std::vector<std::string> all{"build"};
  for (int step = 1; step <= 12; ++step) {
    all.push_back("step " + std::to_string(step));
    if (step % 2 == 0) all.push_back("evaluation");
  }
  CHECK(labels_of(200) == all);
  for (const std::int64_t steps : {1, 4}) CHECK(labels_of(steps) == std::vector<std::string>(all.end() - (2 * steps + 2), all.end()));
  config.batch = 64;  // a step an epoch
  const std::vector<std::string> alternating = labels_of(2);
  CHECK(alternating == std::vector<std::string>{"step 4", "evaluation", "step 5", "evaluation", "step 6", "evaluation"});
}

TEST_CASE("memory export: of very many metrics every k-th and the last are kept") {
  const ScratchDirectory scratch;
  MemoryExport what = export_of(plan_training(small_vit(scratch), {.timeline = true}));
  what.metrics = scratch / "metrics.jsonl";
  const auto metrics_of = [&](int rows) {
    std::string text;
    for (int step = 1; step <= rows; ++step) {
      text += "{\"step\": " + std::to_string(step) + ", \"loss\": " + std::to_string(step) + ".5}\n";
      if (step % 100 == 0) text += "{\"step\": " + std::to_string(step) + ", \"test_accuracy\": 0.5}\n";
    }
    scratch.write("metrics.jsonl", text);
    return json::parse(memory_json(what))["metrics"];
  };
  CHECK(metrics_of(4000)["step"].size() == 4000);
  const json metrics = metrics_of(12001);  // every fourth
  REQUIRE(metrics["step"].size() == 3001);
  CHECK(metrics["loss"].size() == 3001);
  CHECK(metrics["lr"].size() == 3001);
  CHECK(metrics["step"].back() == 12001);
  for (std::size_t i = 0; i < 3001; ++i) {
    REQUIRE(metrics["step"][i] == 1 + 4 * i);
    REQUIRE(metrics["loss"][i] == 1.5 + 4 * double(i));
  }
  CHECK(metrics["test_step"].size() == 120);
}

TEST_CASE("memory export: without a timeline a run's report is the plan's and says so; an interrupted run has one too") {
  const ScratchDirectory scratch;
  Config config = small_vit(scratch);
  config.run_dir = scratch / "plain";
  const Device device = Device::new_cpu();
  run_training(config, {.device = device});
  CHECK(!device.has_timeline());
  const json memory = json::parse(read_text_file(scratch / "plain/memory.json"));
  CHECK(memory["planned"] == true);
  CHECK(memory["peak_bytes"] == device.peak_bytes());
  CHECK(memory["metrics"]["test_accuracy"].size() == 2);

  config.run_dir = scratch / "stopped";
  config.timeline = 2;
  const Device other = Device::new_cpu();
  const RunResult result = run_training(config, {.device = other}, {.should_stop = [] { return true; }});
  CHECK(!result.is_finished);
  CHECK(!other.has_timeline());
  check_json(json::parse(read_text_file(scratch / "stopped/memory.json")), other.peak_bytes());
}

TEST_CASE("memory export: out of memory leaves the receipt of what was held") {
  const ScratchDirectory scratch;
  Config config = small_vit(scratch);
  const std::int64_t peak = plan_training(config).ledger.peak_bytes();
  config.memory_limit = {peak - peak / 10};
  config.timeline = 1;
  config.run_dir = scratch / "run";
  const Device device = Device::new_cpu();
  CHECK_THROWS_AS(run_training(config, {.device = device}), OutOfMemory);
  const json memory = json::parse(read_text_file(scratch / "run/memory.json"));
  check_json(memory, device.peak_bytes());
  CHECK(memory["peak_bytes"] > peak / 2);
  CHECK(memory["planned"] == false);
}

TEST_CASE("memory export: a report that cannot be written loses no training") {
  const ScratchDirectory scratch;
  Config config = small_vit(scratch);
  config.run_dir = scratch / "run";
  fs::create_directories(scratch.path() / "run/memory.json/in the way");
  std::vector<std::string> notes;
  const RunResult result =
      run_training(config, {.device = Device::new_cpu()}, {.on_note = [&](const std::string& text) { notes.push_back(text); }});
  CHECK(result.is_finished);
  REQUIRE(!notes.empty());
  CHECK_THAT(notes.back(), Catch::Contains("memory report"));
}

TEST_CASE("memory curve: thinning keeps the ends and the highest total, and blocks of a long timeline are the last step's") {
  const ScratchDirectory scratch;
  const Plan plan = plan_training(small_vit(scratch), {.timeline = true});
  const MemoryCurve whole = memory_curve(*plan.timeline), thin = memory_curve(*plan.timeline, 50);
  CHECK(whole.size() == plan.timeline->events().size());
  CHECK(thin.size() <= 50);
  CHECK(thin.size() > 25);
  CHECK(thin.ticks.front() == whole.ticks.front());
  CHECK(thin.ticks.back() == whole.ticks.back());
  CHECK(std::is_sorted(thin.ticks.begin(), thin.ticks.end()));
  const auto most = [](const MemoryCurve& curve) {
    std::int64_t highest = 0;
    for (std::size_t i = 0; i < curve.size(); ++i) {
      std::int64_t total = 0;
      for (const auto& bytes : curve.bytes) total += bytes[i];
      highest = std::max(highest, total);
    }
    return highest;
  };
  CHECK(most(thin) == plan.ledger.peak_bytes());
  CHECK(most(whole) == plan.ledger.peak_bytes());
  CHECK_THROWS_AS(memory_curve(*plan.timeline, 3), InvalidArgument);

  const ExportedBlocks all = exported_blocks(*plan.timeline), last = exported_blocks(*plan.timeline, 10);
  CHECK(all.blocks.size() == plan.timeline->blocks().size());
  CHECK(last.blocks.size() < all.blocks.size());
  CHECK(last.begin > all.begin);
  bool has_saved = false;
  for (const MemoryBlock& block : last.blocks) {
    CHECK(block.birth < last.end);
    CHECK((block.death < 0 || block.death >= last.begin));
    has_saved |= block.tag.kind == MemoryKind::saved;
  }
  CHECK(has_saved);
}
