// Bytes by kind over time, from a timeline.
#pragma once

#include <refrain/core/memory/timeline.h>

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace refrain {

struct Plan;

// Where the part of the program that a mark begins ends: at the next mark, or with the timeline.
std::int64_t end_of_mark(const Timeline& timeline, std::size_t mark);

// [begin, end) of the last mark "step N"; nothing without one.
struct TickRange {
  std::int64_t begin = 0, end = 0;
};
std::optional<TickRange> last_step(const Timeline& timeline);

// Point i: what is alive after tick ticks[i], which was seconds[i] after the timeline's start.
struct MemoryCurve {
  std::vector<std::int64_t> ticks;
  std::vector<double> seconds;
  std::array<std::vector<std::int64_t>, std::size_t(kNumMemoryKinds)> bytes;

  std::size_t size() const { return ticks.size(); }
};

// A curve of more points is thinned: of every stretch the highest and the lowest total stay, and of all the peak.
inline constexpr std::size_t kMostCurvePoints = 20'000;

// The events with ticks of [begin, end).
MemoryCurve memory_curve(const Timeline& timeline, std::int64_t begin, std::int64_t end, std::size_t most = kMostCurvePoints);
MemoryCurve memory_curve(const Timeline& timeline, std::size_t most = kMostCurvePoints);

// What a plan says about the steps and evaluations of a measured timeline, in its ticks and seconds. The plan needs a timeline.
MemoryCurve planned_curve(const Timeline& measured, const Plan& plan, std::size_t most = kMostCurvePoints);

}  // namespace refrain
