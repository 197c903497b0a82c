// Trains a cell, its simplest equivalent and its plan, and says whether they agree.
#pragma once

#include <refrain/tests/matrix/axes.h>
#include <refrain/tests/support/thread_group.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace refrain::testing {

// What a training of all ranks came to.
struct Trained {
  std::vector<float> weights = {};  // all parameters, on every rank
  std::vector<double> losses = {};  // rank 0's, of every step
  std::vector<std::int64_t> peak_bytes = {}, host_peak_bytes = {};  // of every rank
  std::vector<std::string> problems = {};     // ranks that differ from each other or from their plans
};

struct CellResult {
  Cell cell;
  std::vector<std::string> problems = {};     // none: the cell is as it should be
  std::vector<std::string> refusals = {};     // messages of what was refused as documented
  bool is_trained = false;               // false: refused as a whole, or failed
  bool is_exact = false;                 // the weights have the bits of the simplest equivalent's
  double difference = 0;                 // the largest of a weight from it
  std::vector<std::int64_t> peak_bytes = {}, host_peak_bytes = {};
  double seconds = 0;
};

// How far a cell's weights may be from those of its simplest equivalent; 0: the bits are promised.
struct Tolerance {
  double bound;
  std::string_view reason;
};
Tolerance tolerance_of(const Cell& cell);

class CellRunner {
 public:
  CellRunner();
  // Nothing is thrown: what goes wrong is among the result's problems. Trainings that several cells are compared with run once.
  CellResult run(const Cell& cell);

 private:
  Trained train(const Config& config, int world_size, bool is_planned);
  // Trained once.
  const Trained& reference(const Config& config, int world_size);
  void compare(const Trained& trained, CellResult& result);

  std::map<int, std::unique_ptr<RankThreads>> threads_;  // by the size of the world
  std::map<std::string, Trained> references_;
};

}  // namespace refrain::testing
