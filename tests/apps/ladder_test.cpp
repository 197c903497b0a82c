// `refrain ladder` and `refrain report` from outside: files, exit codes, and what is refused.
#include <refrain/core/io/file.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/scratch_directory.h>

#include <sys/wait.h>

#include <cstdlib>

#include <nlohmann/json.hpp>

using namespace refrain;
using refrain::testing::ScratchDirectory;
using Catch::Contains;
namespace fs = std::filesystem;

namespace {

struct Outcome {
  int code;
  std::string out, err;
};

Outcome refrain_command(const ScratchDirectory& scratch, const std::string& arguments) {
  const std::string line = "cd '" + scratch.path().string() + "' && '" REFRAIN_COMMAND "' " + arguments + " >out 2>err";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_text_file(scratch / "out"), read_text_file(scratch / "err")};
}

}  // namespace

TEST_CASE("ladder command: one rung as text, JSON and a page") {
  const ScratchDirectory scratch;
  const Outcome text = refrain_command(scratch, "ladder load --html load.html");
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
