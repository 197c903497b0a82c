// `refrain ladder` and `refrain report` from outside: files, exit codes, and what is refused.
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
namespace fs = std::filesystem;

TEST_CASE("ladder command: one rung as text, JSON and a page") {
  const ScratchDirectory scratch;
  const Outcome text = refrain_command(scratch, "ladder load --html=load.html");
  INFO(text.out << text.err);
  REQUIRE(text.code == 0);
  CHECK_THAT(text.out, Contains("published 1.24 / 0.65 GB") && Contains("Notes"));
  CHECK_THAT(read_text_file(scratch / "load.html"), Contains("The memory ladder of ViT-L/16") && Contains("1.24 / 0.65"));
  const nlohmann::json json = nlohmann::json::parse(refrain_command(scratch, "ladder load --json").out);
  CHECK(json["planned_for"] == "cpu");
  CHECK(json["rungs"].size() == 1);
  // 303,311,882 parameters of two bytes, each in an allocation of its own.
  CHECK(json["rungs"][0]["entries"][0]["bytes_without_input"] >= 606623764);
}

TEST_CASE("ladder command: unknown rungs, columns and flags are refused") {
  const ScratchDirectory scratch;
  CHECK_THAT(refrain_command(scratch, "ladder fp64").err, Contains("'fp32 Adam b64'"));
  CHECK(refrain_command(scratch, "ladder fp64").code == 2);
  CHECK(refrain_command(scratch, "ladder --run").code == 2);
  CHECK(refrain_command(scratch, "ladder load --run").code == 2);
  CHECK(refrain_command(scratch, "ladder load --run --column D").code == 2);
  CHECK(refrain_command(scratch, "ladder load --steps 0").code == 2);
  CHECK(refrain_command(scratch, "ladder --nothing").code == 2);
  CHECK(refrain_command(scratch, "ladder load --html=").code == 2);
  CHECK(refrain_command(scratch, "ladder load --json=3").code == 2);
  CHECK_THAT(refrain_command(scratch, "report").err, Contains("hint: refrain report --help"));
}

TEST_CASE("ladder command: flags that would change nothing are refused, and the hint is at its own help") {
  const ScratchDirectory scratch;
  for (const auto& [arguments, flag] : {std::pair("ladder load --column A", "--column: "), std::pair("ladder load --steps=2", "--steps: "),
                                        std::pair("ladder load --run --json", "--json: ")}) {
    const Outcome outcome = refrain_command(scratch, arguments);
    INFO(outcome.err);
    CHECK(outcome.code == 2);
    CHECK(outcome.out.empty());
    CHECK_THAT(outcome.err, Contains(flag) && Contains("--run") && Contains("hint: refrain ladder --help"));
  }
}

TEST_CASE("report command: the page of a memory.json, beside it or where it is told") {
  const ScratchDirectory scratch;
  fs::copy_file(fs::path(REFRAIN_SOURCE_DIR) / "tests/browser/hostile.json", scratch / "memory.json");
  REQUIRE(refrain_command(scratch, "report memory.json").code == 0);
  CHECK(fs::file_size(scratch / "report.html") > fs::file_size(scratch / "memory.json"));
  REQUIRE(refrain_command(scratch, "report memory.json other.html").code == 0);
  CHECK(read_text_file(scratch / "other.html") == read_text_file(scratch / "report.html"));
  CHECK(refrain_command(scratch, "report").code == 2);
  CHECK(refrain_command(scratch, "report absent.json").code == 3);
  scratch.write("cut.json", "{\"title\": ");
  CHECK(refrain_command(scratch, "report cut.json").code == 3);
  CHECK(!fs::exists(scratch / "cut.html"));
}
