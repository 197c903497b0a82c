// `refrain plan`: what a training would take, without training.
#include "command.h"

#include <refrain/core/check.h>
#include <refrain/core/parallel.h>
#include <refrain/train/plan.h>
#include <refrain/train/plan_report.h>

#include <charconv>
#include <iostream>

namespace refrain::apps {

namespace {

constexpr std::string_view kHelp =
    "refrain plan [CONFIG.toml] [--KEY VALUE …]   memory, work and time of a training, without training\n"
    "\n"
    "  --json               one JSON object instead of text\n"
    "  --train-samples N    samples to train on, where the data is not there to tell [60000]\n"
    "  --test-samples N     samples to test on, likewise [10000]\n"
    "\n"
    "The training is run on tensors that have sizes and no bytes, through the same arena: peak and reserved bytes are the\n"
    "run's to the byte. Neither weights nor data are needed; headers of the data are read where they are. The time is an\n"
    "estimate from a short measurement of this CPU. Keys are those of refrain train; presets need an --image-size.\n";

std::int64_t count_of(const std::string& flag, const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && end == text.data() + text.size() && value >= 1 && value <= std::int64_t{1} << 40, flag,
        ": expected a number of samples, got '", text, "'");
  return value;
}

}  // namespace

int plan_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> rest;
  bool is_json = false;
  PlanOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      std::cout << kHelp << config_help();
      return kDone;
    }
    if (argument == "--json") {
      is_json = true;
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string flag = argument.substr(0, equals);
    if (flag == "--train-samples" || flag == "--test-samples") {
      check(equals != std::string::npos || i + 1 < arguments.size(), flag, ": expected a value after it");
      const std::string value = equals != std::string::npos ? argument.substr(equals + 1) : arguments[++i];
      (flag == "--train-samples" ? options.num_train : options.num_test) = count_of(flag, value);
      continue;
    }
    rest.push_back(argument);
  }
  const Arguments split = split_arguments(rest);
  check(split.positional.size() <= 1, "expected one configuration file, got ", split.positional.size());
  const Config config = load_config(split.positional.empty() ? "" : split.positional[0], split.flags);
  if (config.threads > 0) set_num_threads(int(config.threads));

  Plan plan = plan_training(config, options);
  plan.rates = measure_rates(plan.config);
  std::cout << (is_json ? plan_json(plan) : plan_report(plan));
  return kDone;
}

}  // namespace refrain::apps
