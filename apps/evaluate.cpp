// `refrain evaluate`: test loss and accuracy of a run's newest snapshot.
#include "command.h"
#include "display.h"

#include <refrain/core/check.h>

#include <cstdio>
#include <filesystem>
#include <iostream>

namespace refrain::apps {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kHelp =
    "refrain evaluate RUN_DIR [--KEY VALUE …]   loss and accuracy of the newest complete snapshot on the test data\n"
    "\n"
    "The configuration is the run's own; flags such as --data-path and --eval-batch override it.\n";

}  // namespace

int evaluate_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> rest;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      std::cout << kHelp << config_help();
      return kDone;
    }
    if (argument.starts_with("--resume=")) rest.push_back(argument.substr(9));
    else if (argument != "--resume") rest.push_back(argument);  // `evaluate --resume RUN_DIR` says the same
  }
  Arguments split = split_arguments(rest);
  check(split.positional.size() == 1, "expected one run directory, got ", split.positional.size());
  const fs::path run_dir = split.positional[0];
  check<DataError>(holds_run(run_dir), run_dir.string(), ": holds no run");
  split.flags.push_back("--run-dir=" + run_dir.string());
  const Config config = load_config(run_dir / "config.toml", split.flags);

  Display display;
  const RunHooks hooks{.on_note = [&](const std::string& text) { display.line(text); }};
  const Evaluation result = run_evaluation(config, {}, hooks);
  char text[200];
  std::snprintf(text, sizeof text, "test accuracy %.2f %%  test loss %.4f  (%lld samples)", 100 * result.accuracy, result.loss,
                static_cast<long long>(result.samples));
  display.line(text);
  return kDone;
}

}  // namespace refrain::apps
