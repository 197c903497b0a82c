#include <refrain/tests/matrix/report.h>

#include <refrain/core/check.h>
#include <refrain/core/io/file.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <set>

namespace refrain::testing {

namespace {

using Results = std::vector<const CellResult*>;

std::string short_number(double value) {
  if (value == 0) return "0";
  char text[32];
  std::snprintf(text, sizeof text, "%.0e", value);
  return text;
}

// "36"; "34 of 36"; "12, 24 refused".
std::string num_good(const Results& results) {
  std::ptrdiff_t good = 0, refused = 0;
  for (const CellResult* result : results) {
    good += result->is_trained && result->problems.empty();
    refused += !result->is_trained && result->problems.empty();
  }
  const std::ptrdiff_t rest = std::ptrdiff_t(results.size()) - refused;
  return concat(good, good == rest ? "" : concat(" of ", rest), refused > 0 ? concat(", ", refused, " refused") : "");
}

std::string largest_differences(const Results& results) {
  std::string text;
  for (const std::string_view accumulate : axes()[kAccumulate].values) {
    double largest = -1;
    for (const CellResult* result : results)
      if (result->is_trained && result->cell.value(kAccumulate) == accumulate) largest = std::max(largest, result->difference);
    text += concat(text.empty() ? "" : " / ", largest < 0 ? "–" : short_number(largest));
  }
  return text;
}

// A row for every strategy (and order), a column for every precision.
std::string table(const std::vector<CellResult>& results, bool has_orders, const std::function<std::string(const Results&)>& text_of) {
  const std::vector<std::string_view>& precisions = axes()[kPrecision].values;
  std::string text = has_orders ? "| strategy | order |" : "| strategy |", line = has_orders ? "| --- | --- |" : "| --- |";
  for (const std::string_view precision : precisions) {
    text += concat(" ", precision, " |");
    line += " --- |";
  }
  text += "\n" + line + "\n";
  std::map<std::array<int, 3>, Results> by_place;
  for (const CellResult& result : results)
    by_place[{result.cell.at[kStrategy], has_orders ? result.cell.at[kOrder] : 0, result.cell.at[kPrecision]}].push_back(&result);
  for (std::size_t strategy = 0; strategy < axes()[kStrategy].values.size(); ++strategy)
    for (std::size_t order = 0; order < (has_orders ? axes()[kOrder].values.size() : 1); ++order) {
      std::string row;
      bool has_cells = false;
      for (std::size_t precision = 0; precision < precisions.size(); ++precision) {
        const Results& results_here = by_place[{int(strategy), int(order), int(precision)}];
        has_cells = has_cells || !results_here.empty();
        row += concat(" ", results_here.empty() ? "" : text_of(results_here), " |");
      }
      if (!has_cells) continue;
      text += concat("| ", axes()[kStrategy].values[strategy], has_orders ? concat(" | ", axes()[kOrder].values[order]) : "", " |", row, "\n");
    }
  return text;
}

}  // namespace

MatrixSummary summary_of(const std::vector<CellResult>& results) {
  MatrixSummary sum;
  for (const CellResult& result : results) {
    ++sum.num_cells;
    if (!result.problems.empty()) ++sum.num_failed;
    else if (!result.is_trained) ++sum.num_refused;
    else ++sum.num_trained, sum.num_exact += result.is_exact;
  }
  return sum;
}

std::string to_text(const MatrixSummary& sum) {
  return concat(sum.num_cells, " cells: ", sum.num_trained, " train as their simplest equivalents do (", sum.num_exact,
                " with the same bits) and take what was planned, ", sum.num_refused, " are refused, ", sum.num_failed, " fail");
}

std::string matrix_tables(const std::vector<CellResult>& results) {
  std::string text = to_text(summary_of(results)) + ".\n\nCells that are as they should be";
  for (const AxisName axis : {kCheckpoint, kAccumulate, kOffload, kOptimizer}) {
    text += concat(axis == kCheckpoint ? ", of " : " x ", axes()[axis].name, " {");
    for (const std::string_view value : axes()[axis].values) text += concat(value == axes()[axis].values[0] ? "" : ", ", value);
    text += "}";
  }
  text += ":\n\n";
  text += table(results, true, num_good);
  text += "\nLargest difference of a weight from the simplest equivalent's, accumulate 1 / 2:\n\n";
  text += table(results, false, largest_differences);

  std::map<std::string, std::set<std::string>> reasons;
  std::map<std::string, int> counts;
  for (const CellResult& result : results) {
    const std::vector<Refusal> refusals = refusals_of(result.cell);
    for (std::size_t i = 0; i < result.refusals.size(); ++i) {
      reasons[refusals[i].what].insert(result.refusals[i]);
      ++counts[refusals[i].what];
    }
  }
  if (!reasons.empty()) text += "\nRefused:\n\n| what | cells | message |\n| --- | --- | --- |\n";
  for (const auto& [what, messages] : reasons)
    for (const std::string& message : messages) text += concat("| ", what, " | ", counts[what], " | ", message, " |\n");
  return text;
}

void replace_between_markers(const std::filesystem::path& file, const std::string& name, const std::string& text) {
  std::string whole = read_text_file(file, 1 << 24);
  const std::size_t begin = whole.find("<!-- " + name + " begins"), end = whole.find("<!-- " + name + " ends -->");
  check<DataError>(begin != std::string::npos && end != std::string::npos && begin < end, file.string(), ": has no lines '<!-- ", name,
                   " begins … -->' and '<!-- ", name, " ends -->'");
  const std::size_t from = whole.find("-->", begin) + 4;
  whole.replace(from, end - from, "\n" + text + "\n");
  write_file_atomically(file, whole);
}

}  // namespace refrain::testing
