// Trains the cells of the composition matrix: strategies, regions, precisions, orders, accumulation, offload, optimizers.
#include <refrain/core/check.h>
#include <refrain/core/io/file.h>
#include <refrain/core/parallel.h>
#include <refrain/tests/matrix/cover.h>
#include <refrain/tests/matrix/report.h>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>
#include <vector>

using namespace refrain;
using namespace refrain::testing;

namespace {

constexpr const char* kUsage = R"(usage: composition_matrix --all | --subset [2|3] | --cell FORM [--docs FILE] [--results FILE]

  --all           every cell
  --subset N      cells that meet every combination of values of any N axes [2]
  --cell FORM     cells such as "sharded/block/bf16-mixed/fused/2/all/adamw"; `*` is any value
  --docs FILE     writes the tables between the lines `composition matrix begins` and `ends` of this file
  --results FILE  writes the tables, with date and duration

Exit code 1 when a cell fails.
)";

struct Options {
  std::vector<Cell> cells;
  std::string what, docs, results;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto value = [&] {
      check(i + 1 < argc, word, ": expected a value");
      return std::string(argv[++i]);
    };
    if (word == "--all") {
      options.cells = all_cells();
      options.what = word;
    } else if (word == "--subset") {
      const bool has_number = i + 1 < argc && argv[i + 1][0] != '-';
      const std::string strength = has_number ? argv[++i] : "2";
      check(strength == "2" || strength == "3", "--subset: expected 2 or 3, got '", strength, "'");
      options.cells = cover_of_all(strength == "3" ? 3 : 2);
      options.what = word + " " + strength;
    } else if (word == "--cell") {
      options.what = value();
      options.cells = cells_like(options.what);
      options.what = "--cell \"" + options.what + "\"";
    } else if (word == "--docs") {
      options.docs = value();
    } else if (word == "--results") {
      options.results = value();
    } else {
      fail("unknown word '", word, "'");
    }
  }
  check(!options.cells.empty(), "expected --all, --subset or --cell");
  return options;
}

std::vector<CellResult> run(const std::vector<Cell>& cells) {
  CellRunner runner;
  std::vector<CellResult> results;
  const bool is_terminal = isatty(STDERR_FILENO) != 0;
  std::size_t num_failed = 0;
  for (const Cell& cell : cells) {
    results.push_back(runner.run(cell));
    const CellResult& result = results.back();
    if (!result.problems.empty()) {
      ++num_failed;
      std::fprintf(stderr, "%sFAILED %s\n", is_terminal ? "\r\033[K" : "", cell.name().c_str());
      for (const std::string& problem : result.problems) std::fprintf(stderr, "    %s\n", problem.c_str());
    }
    if (is_terminal || results.size() % 200 == 0)
      std::fprintf(stderr, "%s%zu of %zu cells, %zu failed%s", is_terminal ? "\r\033[K" : "", results.size(), cells.size(), num_failed,
                   is_terminal ? "" : "\n");
  }
  if (is_terminal) std::fprintf(stderr, "\r\033[K");
  return results;
}

std::string today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  try {
    options = parse(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "composition_matrix: %s\n\n%s", error.what(), kUsage);
    return 2;
  }
  set_num_threads(1);  // ranks are threads already
  const auto start = std::chrono::steady_clock::now();
  const std::vector<CellResult> results = run(options.cells);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const MatrixSummary summary = summary_of(results);
  std::printf("%s (%.0f s)\n", to_text(summary).c_str(), seconds);
  try {
    const std::string tables = matrix_tables(results);
    if (!options.docs.empty()) replace_between_markers(options.docs, "composition matrix", tables);
    if (!options.results.empty())
      write_file_atomically(options.results, concat("# Composition matrix\n\n`composition_matrix ", options.what, "`, ", today(), ", ",
                                                    std::int64_t(seconds), " s. What the tables say is explained in "
                                                    "[distributed.md](../../docs/distributed.md#composition).\n\n",
                                                    tables));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "composition_matrix: %s\n", error.what());
    return 7;
  }
  return summary.num_failed == 0 ? 0 : 1;
}
