// `refrain plan`: what a training would take, without training.
#include "command.h"
#include "flags.h"

#include <refrain/core/check.h>
#include <refrain/core/parallel.h>
#include <refrain/train/memory_export.h>
#include <refrain/train/plan_report.h>
#include <refrain/train/published_rates.h>

#include <filesystem>
#include <iostream>

namespace refrain::apps {

namespace {

constexpr std::string_view kHelp =
    "refrain plan [CONFIG.toml] [--KEY VALUE …]   memory, work and time of a training, without training\n"
    "\n"
    "  --json               one JSON object instead of text\n"
    "  --receipt            what is alive at the peak, in groups, and what would make each smaller at which price\n"
    "  --tensors            every tensor alive at the peak: bytes, owner, birth and death\n"
    "  --export DIR         write memory.json, memory.csv, trace.json (for ui.perfetto.dev), memory.svg and report.html\n"
    "  --title TEXT         of what --export writes [the configuration's name]\n"
    "  --rates GPU          estimate the time by the published rates of an a100, h100, h200, l4, l40s, rtx3090 or rtx4090\n"
    "  --train-samples N    samples to train on, where the data is not there to tell [60000]\n"
    "  --test-samples N     samples to test on, likewise [10000]\n"
    "  --world N            plan rank 0 of so many, with --strategy; no rank has more batches [1]\n"
    "\n"
    "The training is run on tensors that have sizes and no bytes, through the same arena: peak and reserved bytes are the\n"
    "run's to the byte. Neither weights nor data are needed; headers of the data are read where they are. The time is an\n"
    "estimate from a short measurement of this CPU, or of its GPU with --device cuda, which is planned without a GPU all the\n"
    "same. Keys are those of refrain train; presets need an --image-size.\n";

}  // namespace

int plan_command(const std::vector<std::string>& arguments) {
  std::vector<std::string> rest;
  bool is_json = false, wants_receipt = false, wants_tensors = false;
  std::string export_to, gpu, title;
  PlanOptions options;
  for (FlagReader reader(arguments); reader.next();) {
    const std::string &argument = reader.argument(), &flag = reader.flag();
    if (argument == "--help" || argument == "-h") {
      std::cout << kHelp << config_help();
      return kDone;
    }
    if (argument == "--json")
      is_json = true;
    else if (argument == "--receipt")
      wants_receipt = true;
    else if (argument == "--tensors")
      wants_tensors = true;
    else if (flag == "--export")
      export_to = reader.value();
    else if (flag == "--title")
      title = reader.value();
    else if (flag == "--rates")
      gpu = reader.value();
    else if (flag == "--train-samples")
      options.num_train = count_of(flag, reader.value(), "samples");
    else if (flag == "--test-samples")
      options.num_test = count_of(flag, reader.value(), "samples");
    else if (flag == "--world")
      options.world_size = int(count_of(flag, reader.value(), "ranks", 16384));
    else
      rest.push_back(argument);
  }
  const Arguments split = split_arguments(rest);
  check(split.positional.size() <= 1, "expected one configuration file, got ", split.positional.size());
  const std::string path = split.positional.empty() ? "" : split.positional[0];
  const Config config = load_config(path, split.flags);
  if (!gpu.empty()) published_rates(gpu, config.precision);  // a name that is not known is told before the work
  if (config.threads > 0) set_num_threads(int(config.threads));

  const bool explains = wants_receipt || wants_tensors || !export_to.empty();
  options.timeline = explains;
  Plan plan = plan_training(config, options);
  plan.rates = gpu.empty() ? measure_rates(plan.config) : published_rates(gpu, plan.config.precision);
  if (!plan.rates) plan.notes.push_back("no time: there is no CUDA device to measure; --rates estimates it for a GPU by name");
  Receipt receipt;
  Remedies remedies;
  if (explains) {
    receipt = make_receipt(*plan.timeline, plan.ledger.peak_bytes());
    if (wants_receipt || !export_to.empty()) remedies = plan_remedies(config, options, plan, receipt);
  }
  if (!export_to.empty()) {
    if (title.empty()) title = path.empty() ? plan.config.preset : std::filesystem::path(path).stem().string();
    if (title.empty()) title = plan.config.model;
    export_memory(export_to, {.title = title, .config = plan.config, .reserved_bytes = plan.reserved_bytes, .timeline = *plan.timeline,
                              .receipt = receipt, .remedies = remedies});
  }
  if (is_json) {
    std::cout << plan_json(plan, wants_receipt || wants_tensors ? &receipt : nullptr, remedies);
    return kDone;
  }
  // The receipt says by groups what the table by module says line by line.
  std::cout << plan_report(plan);
  if (wants_receipt) std::cout << "\n" << receipt_text(receipt, remedies);
  if (wants_tensors) std::cout << "\n" << receipt_lines_text(receipt);
  if (!export_to.empty()) std::cout << "\nWrote memory.json, memory.csv, trace.json, memory.svg and report.html into " << export_to << "\n";
  return kDone;
}

}  // namespace refrain::apps
