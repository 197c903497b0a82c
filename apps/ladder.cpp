// `refrain ladder`: the memory ladder of ViT-L/16, rung by rung.
#include "command.h"

#include <refrain/core/check.h>
#include <refrain/core/io/file.h>
#include <refrain/train/ladder.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iostream>

namespace refrain::apps {

namespace {

constexpr std::string_view kHelp =
    "refrain ladder [RUNG]   the memory ladder of ViT-L/16: published figures and plans of the same trainings\n"
    "\n"
    "  --json               one JSON object instead of text\n"
    "  --html FILE          a page for a browser as well\n"
    "  --run                trains the rung RUNG here, on made-up images, and prints its peak beside the plan's\n"
    "  --column NAME        of --run: plain, A, layerwise, B, C or budget [B]\n"
    "  --steps N            of --run: optimizer steps [1]\n"
    "\n"
    "RUNG is a name as the ladder prints it, such as \"+ SGD\".\n";

std::int64_t number_of_steps(const std::string& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  check(error == std::errc{} && end == text.data() + text.size() && value >= 1 && value <= 1000000,
        "--steps: expected a number of steps, got '", text, "'");
  return value;
}

void print_run(const std::string& rung, const LadderEntry& entry, std::int64_t steps) {
  check(entry.is_planned(), "ladder --run: ", rung, " ", entry.column, ": ", entry.missing);
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
  std::string rung, html, column = "B";
  std::int64_t steps = 1;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const auto value = [&] {
      check(i + 1 < arguments.size(), argument, ": expected a value after it");
      return arguments[++i];
    };
    if (argument == "--help" || argument == "-h") {
      std::cout << kHelp;
      return kDone;
    }
    if (argument == "--json")
      is_json = true;
    else if (argument == "--run")
      is_run = true;
    else if (argument == "--html")
      html = value();
    else if (argument == "--column")
      column = value();
    else if (argument == "--steps")
      steps = number_of_steps(value());
    else if (argument.starts_with("--"))
      fail("unknown flag ", argument, "; refrain ladder --help lists them");
    else if (rung.empty())
      rung = argument;
    else
      fail("expected one rung, got '", rung, "' and '", argument, "'");
  }
  check(!is_run || !rung.empty(), "--run: expected the name of a rung, such as \"+ SGD\"");
  const std::vector<LadderColumn>& columns = ladder_columns();
  check(std::any_of(columns.begin(), columns.end(), [&](const LadderColumn& each) { return each.name == column; }),
        "--column: expected plain, A, layerwise, B, C or budget, got '", column, "'");
  const std::vector<LadderRung> ladder = plan_ladder(rung);
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
