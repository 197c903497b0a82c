// `refrain fit` from outside: flags that can be pasted, JSON, a written configuration, exit codes.
#include <refrain/core/io/file.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/command.h>
#include <refrain/tests/support/scratch_directory.h>

#include <nlohmann/json.hpp>

using namespace refrain;
using refrain::testing::Outcome;
using refrain::testing::refrain_command;
using refrain::testing::ScratchDirectory;
using Catch::Contains;

namespace {

const std::string kModel =
    " --patch-size 4 --width 16 --depth 4 --num-heads 2 --image-size 28 --channels 1 --num-classes 10 --data-path nowhere --batch 16 "
    "--train-samples 64 "
    "--test-samples 16 ";

}  // namespace

TEST_CASE("fit command: its flags and its file plan to the bytes it says") {
  const ScratchDirectory scratch;
  const Outcome plain = refrain_command(scratch, "plan --json" + kModel);
  INFO(plain.err);
  REQUIRE(plain.code == 0);
  const std::int64_t most = nlohmann::json::parse(plain.out)["reserved_peak_bytes"];
  const std::string memory = " --memory " + std::to_string(most * 2 / 3);
  const Outcome fitted = refrain_command(scratch, "fit --json --write best.toml" + kModel + memory);
  INFO(fitted.err);
  REQUIRE(fitted.code == 0);
  const nlohmann::json fit = nlohmann::json::parse(fitted.out);
  CHECK(fit["fits"] == true);
  const nlohmann::json& best = fit["choices"][0];
  CHECK(best["reserved_peak_bytes"] <= most * 2 / 3);
  for (const std::string& how : {"plan --json" + kModel + best["flags"].get<std::string>(),
                                 std::string("plan best.toml --json --train-samples 64 --test-samples 16")}) {
    const Outcome planned = refrain_command(scratch, how);
    INFO(how << planned.err);
    REQUIRE(planned.code == 0);
    CHECK(nlohmann::json::parse(planned.out)["reserved_peak_bytes"] == best["reserved_peak_bytes"]);
  }
  const Outcome text = refrain_command(scratch, "fit" + kModel + memory);
  CHECK(text.code == 0);
  CHECK_THAT(text.out, Contains(best["flags"].get<std::string>()) && Contains("extra FLOPs"));
}

TEST_CASE("fit command: says what the least is when nothing fits, and refuses what makes no sense") {
  const ScratchDirectory scratch;
  const Outcome none = refrain_command(scratch, "fit --allow nothing --memory 10kB" + kModel);
  CHECK(none.code == 4);
  CHECK_THAT(none.err, Contains("nothing fits") && Contains("the least is ") && Contains("--checkpoint") && !Contains("hint"));
  CHECK(refrain_command(scratch, "fit" + kModel).code == 2);
  CHECK_THAT(refrain_command(scratch, "fit" + kModel).err, Contains("hint: refrain fit --help"));
  CHECK(refrain_command(scratch, "fit --memory much" + kModel).code == 2);
  CHECK_THAT(refrain_command(scratch, "fit --memory 1MB --allow everything" + kModel).err, Contains("--allow"));
  CHECK_THAT(refrain_command(scratch, "fit --help").out, Contains("--memory BYTES"));
  const Outcome planned = refrain_command(scratch, "plan --checkpoint budget --memory-budget 10kB" + kModel);
  CHECK(planned.code == 4);
  CHECK_THAT(planned.err, Contains("the least is ") && !Contains("hint"));
}

TEST_CASE("fit command: --allow precision finds what a lower precision makes room for, after what keeps the given one") {
  const ScratchDirectory scratch;
  const auto fit = [&](const std::string& arguments) {
    const Outcome outcome = refrain_command(scratch, "fit --json" + kModel + arguments);
    return std::pair(outcome.code, nlohmann::json::parse(outcome.out));
  };
  const auto [code, none] = fit(" --allow nothing --memory 10kB");
  const auto [lower_code, lower] = fit(" --allow precision --memory 10kB");
  CHECK(code == 4);
  CHECK(lower_code == 4);
  const std::int64_t least = none["least"]["reserved_peak_bytes"], lower_least = lower["least"]["reserved_peak_bytes"];
  REQUIRE(lower_least < least);
  CHECK_THAT(lower["least"]["flags"].get<std::string>(), Contains("--precision bf16-true"));

  const std::string between = " --memory " + std::to_string((least + lower_least) / 2);
  CHECK(fit(" --allow nothing" + between).first == 4);
  const auto [found_code, found] = fit(" --allow precision" + between);
  CHECK(found_code == 0);
  CHECK(found["choices"][0]["precision"] == "bf16-true");
  const Outcome planned = refrain_command(scratch, "plan --json" + kModel + found["choices"][0]["flags"].get<std::string>());
  REQUIRE(planned.code == 0);
  CHECK(nlohmann::json::parse(planned.out)["reserved_peak_bytes"] == found["choices"][0]["reserved_peak_bytes"]);

  const auto [all_code, all] = fit(" --allow precision --memory 1GB");
  CHECK(all_code == 0);
  REQUIRE(all["choices"].size() == 3);
  CHECK(all["choices"][0]["precision"] == "32-true");
}
