// The matrix as tables.
#pragma once

#include <refrain/tests/matrix/cell_run.h>

#include <filesystem>
#include <string>
#include <vector>

namespace refrain::testing {

struct MatrixSummary {
  std::int64_t num_cells = 0, num_trained = 0, num_exact = 0, num_refused = 0, num_failed = 0;
};
MatrixSummary summary_of(const std::vector<CellResult>& results);
std::string to_text(const MatrixSummary& summary);

// Markdown: which cells train as they should, how near their simplest equivalents they come, what is refused and why.
std::string matrix_tables(const std::vector<CellResult>& results);

// Puts `text` between the lines `<!-- NAME begins` … `-->` and `<!-- NAME ends -->` of a file. Throws DataError where they are not.
void replace_between_markers(const std::filesystem::path& file, const std::string& name, const std::string& text);

}  // namespace refrain::testing
