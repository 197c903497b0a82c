#include <refrain/core/check.h>
#include <refrain/optim/schedule.h>

#include <cmath>
#include <numbers>

namespace refrain {

Schedule::Schedule(double lr, double floor, std::int64_t warmup_steps, std::int64_t total_steps)
    : lr_(lr), floor_(floor), warmup_steps_(warmup_steps), total_steps_(total_steps) {
  check(std::isfinite(lr) && lr >= 0, "schedule: lr must be finite and not negative, got ", lr);
  check(std::isfinite(floor) && floor >= 0 && floor <= lr, "schedule: floor must be 0 … lr = ", lr, ", got ", floor);
  check(warmup_steps >= 0, "schedule: warmup_steps must not be negative, got ", warmup_steps);
}

Schedule Schedule::constant(double lr) { return {lr, 0, 0, 0}; }

Schedule Schedule::warmup(double lr, std::int64_t warmup_steps) { return {lr, 0, warmup_steps, 0}; }

Schedule Schedule::cosine(double lr, std::int64_t total_steps, double floor) { return cosine_with_warmup(lr, total_steps, 0, floor); }

Schedule Schedule::cosine_with_warmup(double lr, std::int64_t total_steps, std::int64_t warmup_steps, double floor) {
  check(total_steps >= 1, "schedule: total_steps must be at least 1, got ", total_steps);
  check(warmup_steps <= total_steps, "schedule: warmup_steps must be at most total_steps = ", total_steps, ", got ", warmup_steps);
  return {lr, floor, warmup_steps, total_steps};
}

double Schedule::lr(std::int64_t step) const {
  check(step >= 0, "schedule: step must not be negative, got ", step);
  if (total_steps_ != 0 && step >= total_steps_) return floor_;
  if (step < warmup_steps_) return lr_ * double(step + 1) / double(warmup_steps_);
  if (total_steps_ == 0) return lr_;
  const double progress = double(step - warmup_steps_) / double(total_steps_ - warmup_steps_);
  return floor_ + (lr_ - floor_) * (1 + std::cos(std::numbers::pi * progress)) / 2;
}

}  // namespace refrain
