// `refrain ladder`: the memory ladder of ViT-L/16, rung by rung.
#include "command.h"
#include "flags.h"

#include <refrain/core/check.h>
#include <refrain/core/io/file.h>
#include <refrain/train/ladder.h>

#include <algorithm>
#include <cstdio>
#include <iostream>

namespace refrain::apps {

namespace {

constexpr std::string_view kHelp =
    "refrain ladder [RUNG]   the memory ladder of ViT-L/16: published figures and plans of the same trainings\n"
    "\n"
    "  --json               one JSON object instead of text\n"
    "  --html FILE          a page for a browser as well\n"
    "  --device WORD        whose kernels are planned, and where --run trains: cpu, cuda, cuda:1 and so on, or auto [cpu]\n"
    "  --run                trains the rung RUNG here, on made-up images, and prints its peak beside the plan's\n"
    "  --column NAME        of --run: plain, A, layerwise, B, C, D or budget [B]\n"
    "  --steps N            of --run: optimizer steps [1]\n"
    "\n"
    "RUNG is a name as the ladder prints it, such as \"+ SGD\".\n";

void print_run(const std::string& rung, const LadderEntry& entry, std::int64_t steps) {
  check(entry.is_planned(), "ladder --run: ", rung, " ", entry.column, ": ", entry.missing);
  check(entry.world_size == 1, "ladder --run: ", rung, " is of ", entry.world_size, " ranks, which refrain launch starts");
  const LadderRun run = run_ladder_entry(ladder_config(entry), steps);
  const auto line = [](const char* what, std::int64_t planned, std::int64_t measured) {
    std::printf("  %-10s planned %14lld   measured %14lld   difference %lld bytes\n", what, static_cast<long long>(planned),
                static_cast<long long>(measured), static_cast<long long>(measured - planned));
  };
  std::printf("%s, column %s: %lld steps in %.1f s, last loss %.4f\n", rung.c_str(), entry.column.c_str(),
              static_cast<long long>(run.steps), run.seconds, run.last_loss);
  line("peak", run.planned_peak_bytes, run.measured_peak_bytes);
  line("reserved", run.planned_reserved_bytes, run.measured_reserved_bytes);
}

}  // namespace

int ladder_command(const std::vector<std::string>& arguments) {
  bool is_json = false, is_run = false;
  std::string rung, html, device = "cpu", column = "B", of_run;  // of_run: a flag that only a run reads
  std::int64_t steps = 1;
  for (FlagReader reader(arguments); reader.next();) {
    const std::string &argument = reader.argument(), &flag = reader.flag();
    if (argument == "--help" || argument == "-h") {
      std::cout << kHelp;
      return kDone;
    }
    if (argument == "--json")
      is_json = true;
    else if (argument == "--run")
      is_run = true;
    else if (flag == "--html")
      html = reader.value();
    else if (flag == "--device")
      device = reader.value();
    else if (flag == "--column")
      of_run = flag, column = reader.value();
    else if (flag == "--steps")
      of_run = flag, steps = count_of(flag, reader.value(), "steps", 1000000);
    else if (argument.starts_with("--"))
      fail("unknown flag ", argument);
    else if (rung.empty())
      rung = argument;
    else
      fail("expected one rung, got '", rung, "' and '", argument, "'");
  }
  check(!is_run || !rung.empty(), "--run: expected the name of a rung, such as \"+ SGD\"");
  check(is_run || of_run.empty(), of_run, ": expected with --run, which was not given");
  check(!is_run || !is_json, "--json: expected without --run, whose result is text");
  const std::vector<LadderColumn>& columns = ladder_columns();
  check(std::any_of(columns.begin(), columns.end(), [&](const LadderColumn& each) { return each.name == column; }),
        "--column: expected plain, A, layerwise, B, C, D or budget, got '", column, "'");
  const std::vector<LadderRung> ladder = plan_ladder(rung, device);
  if (!html.empty()) write_file_atomically(html, ladder_html(ladder));
  if (is_run) {
    const LadderEntry* entry = ladder[0].find(column);
    check(entry != nullptr && entry->step_flops > 0, "ladder --run: ", rung, " has no training in column ", column);
    print_run(rung, *entry, steps);
  } else {
    std::cout << (is_json ? ladder_json(ladder) : ladder_text(ladder));
  }
  return kDone;
}

}  // namespace refrain::apps
