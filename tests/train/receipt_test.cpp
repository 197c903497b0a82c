// Receipts: nothing is unknown, the sums are the peak's to the byte, and a plan's receipt is the run's line by line.
#include <refrain/tests/support/catch.h>
#include <refrain/tests/train/memory_fixture.h>
#include <refrain/train/receipt.h>
#include <refrain/train/remedies.h>

#include <tuple>

using namespace refrain;
using namespace refrain::testing;
using Catch::Contains;

namespace {

std::vector<std::tuple<std::int64_t, MemoryKind, std::string, std::string, Phase>> owners(const Receipt& receipt) {
  std::vector<std::tuple<std::int64_t, MemoryKind, std::string, std::string, Phase>> list;
  for (const ReceiptLine& line : receipt.lines)
    list.emplace_back(line.bytes, line.kind, line.module->text, std::string(line.op), line.phase);
  return list;
}

void check_sums(const Receipt& receipt, std::int64_t peak) {
  std::int64_t lines = 0, groups = 0, count = 0;
  for (const ReceiptLine& line : receipt.lines) {
    lines += line.bytes;
    CHECK(line.bytes > 0);
    CHECK(!line.born.empty());
    CHECK(!line.died.empty());
    CHECK((line.death < 0 || line.death > line.birth));
  }
  for (const ReceiptGroup& group : receipt.groups) {
    groups += group.bytes;
    count += group.count;
    CHECK(group.bytes > 0);
  }
  CHECK(receipt.peak_bytes == peak);
  CHECK(receipt.unknown_bytes == 0);
  CHECK(lines == peak);
  CHECK(groups == peak);
  CHECK(count == std::int64_t(receipt.lines.size()));
  CHECK(receipt.groups.size() <= 13);
}

void check_receipts(const ScratchDirectory& scratch, const Config& config, const std::string& name) {
  INFO(name << ' ' << config.checkpoint << ' ' << config.precision << ' ' << config.optimizer << ' ' << config.update);
  const Plan plan = plan_training(config, {.timeline = true});
  const Receipt planned = make_receipt(*plan.timeline, plan.ledger.peak_bytes());
  check_sums(planned, plan.ledger.peak_bytes());
  const MeasuredTimeline run = measure(config, scratch / name);
  const Receipt measured = make_receipt(run.timeline, run.peak_bytes);
  check_sums(measured, run.peak_bytes);
  CHECK(owners(planned) == owners(measured));
  CHECK(planned.moment == measured.moment);
  for (std::size_t i = 0; i < std::min(planned.lines.size(), measured.lines.size()); ++i)
    CHECK(planned.lines[i].born == measured.lines[i].born);
}

}  // namespace

TEST_CASE("receipt: sums are the peak's to the byte and the plan's lines are the run's, over models and options") {
  const ScratchDirectory scratch;
  int turn = 0;
  for (const Config& base : {small_vit(scratch), small_gpt2(scratch)}) {
    for (const char* checkpoint : {"none", "block", "nested", "selective"}) {
      Config config = base;
      config.checkpoint = checkpoint;
      if (config.checkpoint == "selective") config.checkpoint_keep = {"attention"};
      config.precision = turn % 3 == 0 ? "32-true" : turn % 3 == 1 ? "bf16-mixed" : "bf16-true";
      config.optimizer = turn % 2 == 0 ? "sgd" : "adamw";
      config.update = turn % 4 == 3 ? "fused" : "after";
      config.accumulate = turn % 3 == 0 ? 3 : 1;
      if (turn % 3 == 0 && turn > 0) config.accumulate_schedule = "layerwise";
      check_receipts(scratch, config, "run-" + std::to_string(turn++));
    }
  }
}

TEST_CASE("receipt: a timeline of the last steps explains a peak that lies before it") {
  const ScratchDirectory scratch;
  Config config = small_vit(scratch);
  config.epochs = 4;
  const MeasuredTimeline all = measure(config, scratch / "all"), last = measure(config, scratch / "last", 2);
  CHECK(last.timeline.first_tick() > last.timeline.peak_tick());
  const Receipt of_all = make_receipt(all.timeline, all.peak_bytes), of_last = make_receipt(last.timeline, last.peak_bytes);
  check_sums(of_last, last.peak_bytes);
  CHECK(owners(of_all) == owners(of_last));
  CHECK_THAT(of_last.lines.front().born, Contains("before step"));
}

TEST_CASE("receipt: births and deaths are named by step, phase and op") {
  const ScratchDirectory scratch;
  const Config config = small_vit(scratch);
  const Plan plan = plan_training(config, {.timeline = true});
  const Receipt receipt = make_receipt(*plan.timeline, plan.ledger.peak_bytes());
  bool has_weight = false, has_activation = false;
  for (const ReceiptLine& line : receipt.lines) {
    if (line.kind == MemoryKind::parameter && line.module->text == "blocks.1.mlp.fc1") {
      CHECK_THAT(line.born, Contains("build"));
      CHECK(line.died == "alive at the end");
      has_weight = true;
    }
    if (line.kind == MemoryKind::saved && line.module->text == "blocks.1.mlp.fc1") {
      CHECK_THAT(line.born, Contains("step ") && Contains("forward of linear"));
      CHECK_THAT(line.died, Contains("step ") && Contains("backward of "));
      has_activation = true;
    }
  }
  CHECK(has_weight);
  CHECK(has_activation);
  const std::string text = receipt_text(receipt);
  CHECK_THAT(text, Contains("unknown: 0") && Contains(std::to_string(receipt.peak_bytes)) && Contains("saved activations of blocks.*"));
  const std::string lines = receipt_lines_text(receipt);
  CHECK(std::count(lines.begin(), lines.end(), '\n') == std::int64_t(receipt.lines.size()) + 2);
}

TEST_CASE("receipt: long module paths and flags are written whole") {
  const ModulePath* module = ModulePath::root();
  for (int i = 0; i < 60; ++i) module = ModulePath::child(module, "a_long_name");
  Receipt receipt;
  ReceiptLine line;
  line.bytes = 5, line.module = module, line.born = "step 1", line.died = "step 2, backward of linear";
  receipt.lines.push_back(line);
  CHECK_THAT(receipt_lines_text(receipt), Catch::EndsWith(module->text + " step 1; until step 2, backward of linear\n"));
  receipt.peak_bytes = 5;
  receipt.groups.push_back({.name = module->text, .modules = module->text});
  Remedies remedies;
  remedies.combined.push_back({.name = "parts", .flags = {"--checkpoint-parts", std::string(500, 'x')}});
  const std::string text = receipt_text(receipt, remedies);
  CHECK_THAT(text, Contains(module->text + "\n") && Contains(std::string(500, 'x') + " saves 0 B") && Catch::EndsWith("same bits\n"));
}

TEST_CASE("receipt groups: repeated modules are one, large groups are divided, small ones are in the group around them") {
  CHECK(module_pattern("blocks.3.attention.qkv") == "blocks.*.attention.qkv");
  CHECK(module_pattern("") == "");
  CHECK(module_pattern("3.x.12") == "*.x.*");
  const ModulePath* block = ModulePath::child(ModulePath::child(ModulePath::root(), "blocks"), "0");
  const ModulePath* mlp = ModulePath::child(block, "mlp");
  const ModulePath* norm = ModulePath::child(block, "norm");
  const ModulePath* head = ModulePath::child(ModulePath::root(), "head");
  const std::vector<PeakEntry> peak{{MemoryKind::saved, mlp, 600}, {MemoryKind::saved, block, 300}, {MemoryKind::saved, norm, 5},
                                    {MemoryKind::parameter, mlp, 90}, {MemoryKind::parameter, head, 5}};
  const ReceiptGroups groups(peak);
  REQUIRE(groups.size() == 4);
  CHECK(groups.all()[0].name == "saved activations of blocks.*.mlp");
  CHECK(groups.all()[1].name == "saved activations of blocks.*, rest");
  CHECK(groups.all()[2].name == "parameters of blocks.*");
  CHECK(groups.all()[3].name == "other");
  CHECK(groups.bytes(peak) == std::vector<std::int64_t>{600, 305, 90, 5, 0});
  CHECK(groups.find(MemoryKind::saved, norm) == 1);
  CHECK(groups.find(MemoryKind::gradient, mlp) == 3);
  CHECK(ReceiptGroups().find(MemoryKind::saved, mlp) == 0);
}
