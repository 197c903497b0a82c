// Learning rates as pure functions of the optimizer step: nothing to save, nothing to resume, no matter how many
// micro-batches or ranks a step is made of.
#pragma once

#include <cstdint>

namespace refrain {

class Schedule {
 public:
  // `lr` for ever.
  static Schedule constant(double lr);
  // Linear warm-up, lr · (step + 1) / warmup_steps for the first steps, then lr for ever.
  static Schedule warmup(double lr, std::int64_t warmup_steps);
  // floor + (lr - floor) · (1 + cos(π · step / total_steps)) / 2 (Loshchilov, Hutter: "SGDR", 2017, without restarts);
  // from total_steps on it stays at the floor.
  static Schedule cosine(double lr, std::int64_t total_steps, double floor = 0);
  // Linear warm-up, then the cosine over the remaining total_steps - warmup_steps.
  static Schedule cosine_with_warmup(double lr, std::int64_t total_steps, std::int64_t warmup_steps, double floor = 0);

  // The rate of optimizer step 0, 1, …. Throws InvalidArgument for a negative step.
  double lr(std::int64_t step) const;

  friend bool operator==(const Schedule&, const Schedule&) = default;

 private:
  Schedule(double lr, double floor, std::int64_t warmup_steps, std::int64_t total_steps);

  double lr_, floor_;
  std::int64_t warmup_steps_;
  std::int64_t total_steps_;  // 0: no end
};

}  // namespace refrain
