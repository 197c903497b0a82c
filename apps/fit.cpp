// `refrain fit`: what to change so that a training stays within a number of bytes.
#include "command.h"
#include "flags.h"

#include <refrain/core/check.h>
#include <refrain/core/io/file.h>
#include <refrain/core/parallel.h>
#include <refrain/train/budget/fit.h>
#include <refrain/train/report.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

#include <nlohmann/json.hpp>

namespace refrain::apps {

namespace {

constexpr std::string_view kHelp =
    "refrain fit [CONFIG.toml] --memory BYTES [--KEY VALUE …]   what to change so that a training stays within so many bytes\n"
    "\n"
    "  --memory BYTES       the limit, such as 2GB or 800MiB: what the tensors take from the system\n"
    "  --allow LIST         what may change besides checkpoints: batch (cut into other micro-batches), update, schedule,\n"
    "                       precision; or nothing [batch,update,schedule]\n"
    "  --json               one JSON object instead of text\n"
    "  --write FILE.toml    the configuration with the best choice, complete\n"
    "  --train-samples N    samples to train on, where the data is not there to tell [60000]\n"
    "  --test-samples N     samples to test on, likewise [10000]\n"
    "\n"
    "The best is what does the least work among what fits; each was planned to the byte. The configuration's own checkpoint\n"
    "and memory keys do not count. When nothing fits, the exit code is 4 and the least that can be reached is named.\n"
    "Neither weights nor data are needed. Keys are those of refrain train; presets need an --image-size.\n";

constexpr std::size_t kMostShown = 8;

struct Options {
  std::int64_t memory = 0;
  bool is_json = false;
  std::string write;
  FitOptions fit = {};
  std::vector<std::string> rest = {};
};

void allow(const std::string& list, FitOptions& fit) {
  fit.batch = fit.update = fit.schedule = fit.precision = false;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t comma = std::min(list.find(',', begin), list.size());
    const std::string word = list.substr(begin, comma - begin);
    check(word == "batch" || word == "update" || word == "schedule" || word == "precision" || word == "nothing",
          "--allow: expected a list of batch, ", "update, schedule and precision, or nothing; got '", word, "'");
    fit.batch |= word == "batch";
    fit.update |= word == "update";
    fit.schedule |= word == "schedule";
    fit.precision |= word == "precision";
    begin = comma + 1;
  }
}

Options parse(const std::vector<std::string>& arguments) {
  Options options;
  for (FlagReader reader(arguments); reader.next();) {
    const std::string &argument = reader.argument(), &flag = reader.flag();
    if (argument == "--json")
      options.is_json = true;
    else if (flag == "--memory")  // the same words as everywhere for bytes: a configuration reads them
      options.memory = load_config("", std::vector<std::string>{"--memory-limit", reader.value()}).memory_limit.value;
    else if (flag == "--allow")
      allow(reader.value(), options.fit);
    else if (flag == "--write")
      options.write = reader.value();
    else if (flag == "--train-samples")
      options.fit.plan.num_train = count_of(flag, reader.value(), "samples");
    else if (flag == "--test-samples")
      options.fit.plan.num_test = count_of(flag, reader.value(), "samples");
    else
      options.rest.push_back(argument);
  }
  check(options.memory > 0, "--memory: expected a number of bytes above 0, such as --memory 2GB");
  return options;
}

std::string table_row(const FitEntry& entry, double least_work) {
  const Config& c = entry.config;
  std::string how = c.update == "fused" ? "fused" : "";
  if (c.accumulate_schedule == "layerwise") how += how.empty() ? "layerwise" : " layerwise";
  char text[200];
  std::snprintf(text, sizeof text, "  %5lld x %-5lld %-16s %-10s %11s %6.1f %% %6.2f  ", static_cast<long long>(c.batch),
                static_cast<long long>(c.accumulate), how.empty() ? "-" : how.c_str(), c.precision.c_str(),
                bytes_text(entry.planned.bytes).c_str(), 100 * entry.planned.extra_flops_share(), entry.work() / least_work);
  return concat(text, entry.checkpoint.text(), "\n");
}

nlohmann::ordered_json as_json(const Config& from, const FitEntry& entry) {
  const Config& c = entry.config;
  return {{"flags", flags_text(from, entry)},
          {"reserved_peak_bytes", entry.planned.bytes},
          {"extra_flops_share", entry.planned.extra_flops_share()},
          {"flops_per_step", entry.planned.step.flops},
          {"bytes_per_step", entry.planned.step.bytes},
          {"batch", c.batch},
          {"accumulate", c.accumulate},
          {"precision", c.precision},
          {"update", c.update},
          {"accumulate_schedule", c.accumulate_schedule},
          {"checkpoint", c.checkpoint},
          {"checkpoint_levels", c.checkpoint_levels},
          {"checkpoint_keep", c.checkpoint_keep},
          {"checkpoint_parts", c.checkpoint_parts}};
}

void print(const Options& options, const Config& config, const Fit& fit) {
  if (options.is_json) {
    nlohmann::ordered_json json;
    json["memory"] = options.memory;
    json["fits"] = !fit.entries.empty();
    json["choices"] = nlohmann::ordered_json::array();
    for (const FitEntry& entry : fit.entries) json["choices"].push_back(as_json(config, entry));
    if (fit.least) json["least"] = as_json(config, *fit.least);
    std::cout << json.dump(2) << "\n";
    return;
  }
  if (fit.entries.empty()) return;
  const FitEntry& best = fit.entries.front();
  std::cout << "Fits into " << bytes_text(options.memory) << " and takes " << best.planned.bytes << " bytes ("
            << bytes_text(best.planned.bytes) << "):\n\n  " << flags_text(config, best) << "\n\n";
  std::cout << "  micro-batches update, schedule precision        takes  extra FLOPs work  checkpoint\n";
  double least_work = best.work();
  for (const FitEntry& entry : fit.entries) least_work = std::min(least_work, entry.work());
  for (std::size_t i = 0; i < std::min(fit.entries.size(), kMostShown); ++i) std::cout << table_row(fit.entries[i], least_work);
}

}  // namespace

int fit_command(const std::vector<std::string>& arguments) {
  if (std::any_of(arguments.begin(), arguments.end(), [](const std::string& a) { return a == "--help" || a == "-h"; })) {
    std::cout << kHelp << config_help();
    return kDone;
  }
  const Options options = parse(arguments);
  const Arguments split = split_arguments(options.rest);
  check(split.positional.size() <= 1, "expected one configuration file, got ", split.positional.size());
  const Config config = load_config(split.positional.empty() ? "" : split.positional[0], split.flags);
  if (config.threads > 0) set_num_threads(int(config.threads));

  const Fit fit = fit_training(config, options.memory, options.fit);
  print(options, config, fit);
  if (fit.entries.empty())
    fail<OutOfMemory>("nothing fits into ", bytes_text(options.memory), "; the least is ", fit.least->planned.bytes, " bytes (",
                      bytes_text(fit.least->planned.bytes), ") with ", flags_text(config, *fit.least));
  if (!options.write.empty()) write_file_atomically(options.write, to_toml(fit.entries.front().config));
  return kDone;
}

}  // namespace refrain::apps
