// Subsets of the composition matrix that meet every combination of values of any two and any three axes, and what chooses them.
#include <refrain/core/parallel.h>
#include <refrain/tests/matrix/cell_run.h>
#include <refrain/tests/matrix/cover.h>
#include <refrain/tests/support/catch.h>

#include <algorithm>
#include <set>
#include <tuple>

using namespace refrain;
using namespace refrain::testing;

namespace {

std::set<std::tuple<std::size_t, int, std::size_t, int>> pairs_of(const std::vector<Cell>& cells) {
  std::set<std::tuple<std::size_t, int, std::size_t, int>> pairs;
  for (const Cell& cell : cells)
    for (std::size_t a = 0; a < kNumAxes; ++a)
      for (std::size_t b = a + 1; b < kNumAxes; ++b) pairs.insert({a, cell.at[a], b, cell.at[b]});
  return pairs;
}

void check_cells(const std::vector<Cell>& cells) {
  set_num_threads(1);
  CellRunner runner;
  for (const Cell& cell : cells) {
    INFO(cell.name());
    std::string problems;
    for (const std::string& problem : runner.run(cell).problems) problems += problem + "\n";
    CHECK(problems == "");
  }
}

}  // namespace

TEST_CASE("matrix: a cover meets every pair of values with few cells, the same for the same seed, and leaves out what does not exist") {
  const std::vector<Cell> all = all_cells(), few = cover(all, 2, 1);
  std::size_t num_pairs = 0, least = 0;
  for (std::size_t a = 0; a < kNumAxes; ++a)
    for (std::size_t b = a + 1; b < kNumAxes; ++b) {
      const std::size_t pairs = axes()[a].values.size() * axes()[b].values.size();
      num_pairs += pairs;
      least = std::max(least, pairs);
    }
  CHECK(pairs_of(few).size() == num_pairs);
  CHECK(few.size() >= least);
  CHECK(few.size() <= least * 5 / 4);
  CHECK(cover(all, 2, 1) == few);
  CHECK(cover(all, 2, 2) != few);
  CHECK(pairs_of(cover_of_all(2)).size() == num_pairs);
  const std::vector<Cell> without = cells_like("ddp/*/*/fused/*/none/*");
  CHECK(pairs_of(cover(without, 2, 1)) == pairs_of(without));
}

TEST_CASE("matrix: cells have names that find them; what is no cell is refused by name") {
  for (const Cell& cell : all_cells()) REQUIRE(cells_like(cell.name()) == std::vector<Cell>{cell});
  CHECK(cells_like("ddp/*/32-true/*/2/none/sgd").size() == 12);
  CHECK_THROWS_WITH(cells_like("dpd/*/*/*/*/*/*"), Catch::Contains("no value of strategy is called 'dpd'"));
  CHECK_THROWS_WITH(cells_like("ddp/block"), Catch::Contains("no value of precision is called ''"));
}

TEST_CASE("matrix: any two choices go together: the simplest equivalent's weights, every rank's peak as planned") { check_cells(cover_of_all(2)); }

TEST_CASE("matrix: any three choices go together", "[sweep]") { check_cells(cover_of_all(3)); }

// Fetched to where they fit best, they drift through the arena: no micro-batch of the window and no batch of the evaluation finds
// it as the one before did.
TEST_CASE("matrix: the plan of a window of many micro-batches holds where parameters are fetched from host memory") {
  check_cells(cells_like("none/nested/*/ordinary/2/all/sgd"));
}
