// `refrain report`: the page of a memory.json that was written before, perhaps elsewhere.
#include "command.h"

#include <refrain/core/check.h>
#include <refrain/core/io/file.h>
#include <refrain/train/report_html/report_html.h>

#include <filesystem>
#include <iostream>

namespace refrain::apps {

namespace {

constexpr std::string_view kHelp =
    "refrain report MEMORY.json [FILE]   a page for a browser from a memory.json\n"
    "\n"
    "  FILE                 what to write [report.html beside the memory.json]\n";

}  // namespace

int report_command(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h")) {
    std::cout << kHelp;
    return kDone;
  }
  check(arguments.size() == 1 || arguments.size() == 2, "report: expected a memory.json and perhaps a file to write, got ",
        arguments.size(), " arguments");
  const std::filesystem::path from = arguments[0];
  const std::filesystem::path to = arguments.size() == 2 ? std::filesystem::path(arguments[1]) : from.parent_path() / "report.html";
  write_file_atomically(to, report_html(read_text_file(from)));
  std::cout << to.string() << "\n";
  return kDone;
}

}  // namespace refrain::apps
