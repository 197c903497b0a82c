// The axes along which trainings are composed, and their cells: one value of each.
#pragma once

#include <refrain/train/config.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace refrain::testing {

enum AxisName : std::size_t { kStrategy, kCheckpoint, kPrecision, kOrder, kAccumulate, kOffload, kOptimizer, kNumAxes };

struct Axis {
  std::string_view name;
  std::vector<std::string_view> values;
};
const std::array<Axis, kNumAxes>& axes();

struct Cell {
  std::array<int, kNumAxes> at{};  // indices of values
  std::string_view value(AxisName axis) const { return axes()[axis].values[std::size_t(at[axis])]; }
  std::string name() const;  // "ddp/block/32-true/fused/2/none/sgd"
  friend bool operator==(const Cell&, const Cell&) = default;
};

std::vector<Cell> all_cells();
// Those whose name has this form: values separated by '/', `*` for any. Throws InvalidArgument for what is no value of its axis.
std::vector<Cell> cells_like(std::string_view form);

inline constexpr int kNumRanks = 4;
inline constexpr int kNumSteps = 3;
inline constexpr std::int64_t kNumTrain = 26, kNumTest = 13;  // the ends of epochs and windows are uneven
int world_size_of(const Cell& cell);                          // 1 for the strategy "none"

// The cell as flags of the command, over base_config().
std::vector<std::string> flags_of(const Cell& cell);
Config base_config();
Config config_of(const Cell& cell);

// What a cell asks for that is refused.
struct Refusal {
  std::string what;                // "16-mixed with its dynamic loss scale, updated in backward"
  std::vector<std::string> flags;  // the cell as it was asked for
  std::string_view reason;         // part of the message
  bool has_instead = false;        // flags_of() is the nearest that trains
};
// By the documentation; empty for most cells.
std::vector<Refusal> refusals_of(const Cell& cell);
bool is_refused(const Cell& cell);  // as a whole

}  // namespace refrain::testing
