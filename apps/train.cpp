// `refrain train`: a configuration, flags over it, a run directory.
#include "command.h"
#include "display.h"
#include "interrupt.h"

#include <refrain/core/check.h>
#include <refrain/train/device_choice.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>

namespace refrain::apps {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kHelp =
    "refrain train CONFIG.toml [--KEY VALUE …]            train as the configuration says; flags override it\n"
    "refrain train CONFIG.toml --resume [--KEY VALUE …]   continue the run of this configuration\n"
    "refrain train --resume RUN_DIR [--KEY VALUE …]       continue the run in RUN_DIR\n"
    "\n"
    "A run directory holds config.toml as resolved, metrics.jsonl, metrics.csv, TensorBoard events, snapshots, and at\n"
    "the end summary.json, report.txt and report.html with its memory.json, memory.csv, trace.json and memory.svg.\n"
    "SIGINT, SIGTERM and SIGHUP save a snapshot and end with exit code 75.\n"
    "Lists are written --mean 0.5,0.5; true and false as --flip and --no-flip.\n";

// runs/NAME, runs/NAME-2, …: for a new run the first that is free, for a resumed one the last that is not.
std::string default_run_dir(const fs::path& config_path, bool resume) {
  const std::string base = "runs/" + config_path.stem().string();
  std::string last = base;
  for (int number = 2;; ++number) {
    const std::string next = concat(base, "-", number);
    if (!holds_run(last)) return last;
    if (resume && !holds_run(next)) return last;
    last = next;
  }
}

bool is_asked_for_device(const std::vector<std::string>& flags) {
  return std::any_of(flags.begin(), flags.end(), [](const std::string& flag) { return flag == "--device" || flag.starts_with("--device="); });
}

}  // namespace

int train_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> rest;
  bool resume = false;
  for (const std::string& argument : arguments) {
    if (argument == "--help" || argument == "-h") {
      std::cout << kHelp << config_help();
      return kDone;
    }
    if (argument == "--resume" || argument.starts_with("--resume=")) {
      resume = true;
      if (argument.size() > 9) rest.push_back(argument.substr(9));
      continue;
    }
    rest.push_back(argument);
  }
  Arguments split = split_arguments(rest);
  check(split.positional.size() == 1, resume ? "expected a run directory or a configuration to resume" : "expected one configuration file",
        ", got ", split.positional.size());
  fs::path path = split.positional[0];
  std::error_code error;
  if (resume && fs::is_directory(path, error)) {
    split.flags.push_back("--run-dir=" + path.string());
    path /= "config.toml";
  }
  Config config = load_config(path, split.flags);
  if (config.run_dir.empty()) config.run_dir = default_run_dir(path, resume);

  Display display;
  if (config.device == "auto" && is_asked_for_device(split.flags) && device_kind(config) == DeviceKind::cpu)
    display.line("no CUDA device: running on CPU");
  catch_interrupts();
  const RunHooks hooks{.on_start = [&](const Config& resolved, std::int64_t num_parameters) { display.start(resolved, num_parameters); },
                       .on_step = [&](const Progress& progress) { display.step(progress); },
                       .on_evaluation = [&](std::int64_t step, double epoch, const Evaluation& e) { display.evaluation(step, epoch, e); },
                       .on_note = [&](const std::string& text) { display.line(text); },
                       .should_stop = is_interrupted};
  RunResult result;
  try {
    result = run_training(config, {.resume = resume}, hooks);
  } catch (...) {
    display.finish();
    throw;
  }
  if (!result.is_main) return result.is_finished ? kDone : kInterrupted;
  if (!result.is_finished) {
    display.line(concat("interrupted after step ", result.steps, "; continue with: refrain train --resume ", config.run_dir));
    return kInterrupted;
  }
  char text[200];
  std::snprintf(text, sizeof text, "done: test accuracy %.2f %%, test loss %.4f, %lld steps in %.1f s of training",
                100 * result.test.accuracy, result.test.loss, static_cast<long long>(result.steps), result.train_seconds);
  display.line(text);
  display.line(concat("run directory ", config.run_dir));
  display.line(concat("memory report ", config.run_dir, "/report.html, as text report.txt; summary ", config.run_dir, "/summary.json"));
  return kDone;
}

}  // namespace refrain::apps
