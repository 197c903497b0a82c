// `refrain plan` from outside: text, JSON, exit codes, and that its numbers are those of `refrain train`.
#include <refrain/core/io/file.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/command.h>
#include <refrain/tests/support/images.h>
#include <refrain/tests/support/scratch_directory.h>

#include <nlohmann/json.hpp>

using namespace refrain;
using refrain::testing::Outcome;
using refrain::testing::refrain_command;
using refrain::testing::ScratchDirectory;
using refrain::testing::write_images;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

void write_config(const ScratchDirectory& scratch) {
  write_images(scratch);
  scratch.write(
      "small.toml",
      "patch_size = 4\nwidth = 16\ndepth = 2\nnum_heads = 2\nmlp_ratio = 2\ndata_path = \"data\"\nbatch = 8\naccumulate = 3\nepochs = 2\n"
      "optimizer = \"adamw\"\nlr = 0.05\ncheckpoint = \"block\"\nthreads = 1\n");
}

}  // namespace

TEST_CASE("plan command: bytes, steps and work of the training that follows, and no file is written") {
  const ScratchDirectory scratch;
  write_config(scratch);
  const Outcome planned = refrain_command(scratch, "plan small.toml --precision bf16-mixed --json");
  INFO(planned.out << planned.err);
  REQUIRE(planned.code == 0);
  CHECK(planned.err.empty());
  CHECK(!fs::exists(scratch / "runs"));
  const nlohmann::json plan = nlohmann::json::parse(planned.out);
  REQUIRE(refrain_command(scratch, "train small.toml --precision bf16-mixed").code == 0);
  const nlohmann::json summary = nlohmann::json::parse(read_text_file(scratch / "runs/small/summary.json"));
  for (const char* key :
       {"peak_bytes", "highest_bytes_of_kind", "reserved_peak_bytes", "num_parameters", "steps", "flops", "replayed_flops_share"})
    CHECK(plan[key] == summary[key]);
  CHECK(plan["notes"].empty());
  CHECK(plan["estimate"]["run_seconds"] > 0);

  const Outcome text = refrain_command(scratch, "plan small.toml --precision bf16-mixed");
  CHECK(text.code == 0);
  CHECK_THAT(text.out, Contains(summary["peak_bytes"]["total"].dump()) && Contains(summary["reserved_peak_bytes"].dump()) &&
                           Contains("estimate") && Contains("blocks.") && Contains("By kind") && Contains("FLOP"));
}

TEST_CASE("plan command: needs no data, no weights and no file, and says what is missing or wrong") {
  const ScratchDirectory scratch;
  const std::string preset = "plan --preset vit_ti_16 --data-path nowhere --batch 8 --num-classes 1000 ";
  const Outcome unknown = refrain_command(scratch, preset);
  CHECK(unknown.code == 2);
  CHECK_THAT(unknown.err, Contains("image_size"));
  const Outcome known = refrain_command(scratch, preset + "--image-size 224 --channels 3 --test-samples=50 --train-samples 100");
  INFO(known.err);
  CHECK(known.code == 0);
  CHECK_THAT(known.out, Contains("5717416") && Contains("100, 50") && Contains("note: data not read"));
  const Outcome limited = refrain_command(scratch, preset + "--image-size 224 --channels 3 --memory-limit 10MB");
  CHECK(limited.code == 0);
  CHECK_THAT(limited.out, Contains("is too low"));

  CHECK(refrain_command(scratch, "plan --help").code == 0);
  CHECK_THAT(refrain_command(scratch, "plan --help").out, Contains("--json") && Contains("--image-size"));
  CHECK_THAT(refrain_command(scratch, "plan --bacth 3").err, Contains("did you mean '--batch'?") && Contains("hint: refrain plan --help"));
  for (const char* wrong : {"plan one.toml two.toml", "plan --train-samples 0", "plan --test-samples", "plan --train-samples many",
                            "plan nowhere.toml --device cuda", "plan --device tpu --image-size 28"}) {
    const Outcome outcome = refrain_command(scratch, wrong);
    INFO(wrong << ": " << outcome.err);
    CHECK((outcome.code == 2 || outcome.code == 3));
    CHECK(outcome.out.empty());
  }
}

TEST_CASE("plan command: receipt, tensors and exports agree with the peak, and remedies with plans of their flags") {
  const ScratchDirectory scratch;
  write_config(scratch);
  const Outcome planned = refrain_command(scratch, "plan small.toml --receipt --tensors --json --export exported/memory");
  INFO(planned.out.substr(0, 500) << planned.err);
  REQUIRE(planned.code == 0);
  const nlohmann::json plan = nlohmann::json::parse(planned.out);
  const nlohmann::json& receipt = plan["receipt"];
  const std::int64_t peak = plan["peak_bytes"]["total"];
  CHECK(receipt["peak_bytes"] == peak);
  CHECK(receipt["unknown_bytes"] == 0);
  std::int64_t tensors = 0, groups = 0;
  std::string flags;
  for (const nlohmann::json& line : receipt["tensors"]) tensors += line["bytes"].get<std::int64_t>();
  for (const nlohmann::json& group : receipt["groups"]) {
    groups += group["bytes"].get<std::int64_t>();
    for (const nlohmann::json& remedy : group["remedies"]) {
      if (!flags.empty()) continue;
      flags = remedy["flags"];
      const Outcome changed = refrain_command(scratch, "plan small.toml --json " + flags);
      REQUIRE(changed.code == 0);
      CHECK(nlohmann::json::parse(changed.out)["peak_bytes"]["total"] == remedy["peak_bytes"]);
    }
  }
  CHECK(tensors == peak);
  CHECK(groups == peak);
  CHECK(!flags.empty());
  const nlohmann::json memory = nlohmann::json::parse(read_text_file(scratch / "exported/memory/memory.json"));
  CHECK(memory["peak_bytes"] == peak);
  CHECK(memory["title"] == "small");
  CHECK(memory["planned"] == true);
  for (const char* file : {"memory.csv", "trace.json", "report.html"})
    CHECK(fs::file_size(scratch.path() / "exported/memory" / file) > 100);

  const Outcome text = refrain_command(scratch, "plan small.toml --receipt --tensors");
  CHECK(text.code == 0);
  CHECK_THAT(text.out, Contains("unknown: 0") && Contains("saved activations of blocks.*") && Contains("--precision bf16-true") &&
                           Contains(flags) && Contains("Every tensor at the peak") && Contains("replay of linear"));
  CHECK_THAT(refrain_command(scratch, "plan small.toml").out, !Contains("Receipt"));
  CHECK(refrain_command(scratch, "plan small.toml --export").code == 2);
  CHECK(refrain_command(scratch, "plan small.toml --export=").code == 2);
}
