#include <refrain/train/run_memory.h>

#include <refrain/core/check.h>
#include <refrain/train/clock.h>
#include <refrain/train/memory_export.h>

#include <algorithm>

namespace refrain {

namespace {

// Plans with every micro-batch up to here; above it the plan's curve is stretched over the run's.
constexpr std::int64_t kMostWhole = 64;
constexpr double kNumPlans = 60;  // about as many as remedies take

std::string title_of(const std::filesystem::path& run_dir) {
  const std::filesystem::path clean = run_dir.lexically_normal();
  return (clean.has_filename() ? clean : clean.parent_path()).filename().string();
}

// A peak of steps that are kept no more is told as the plan tells it, where the two are the same allocations.
void tell_as_planned(const Timeline& timeline, const Receipt& planned, Receipt& receipt) {
  if (receipt.tick >= timeline.first_tick() || receipt.tick != planned.tick) return;
  const auto is_same = [](const ReceiptLine& a, const ReceiptLine& b) {
    return a.bytes == b.bytes && a.birth == b.birth && a.module == b.module && a.op == b.op;
  };
  if (!std::equal(receipt.lines.begin(), receipt.lines.end(), planned.lines.begin(), planned.lines.end(), is_same)) return;
  receipt.moment = planned.moment;
  for (std::size_t i = 0; i < receipt.lines.size(); ++i) {
    receipt.lines[i].born = planned.lines[i].born;
    if (receipt.lines[i].death == planned.lines[i].death) receipt.lines[i].died = planned.lines[i].died;
  }
}

}  // namespace

RunMemory::RunMemory(const Config& config, const Device& device, int world_size)
    : device_(device), has_timeline_(config.timeline > 0), world_size_(world_size) {
  if (!has_timeline_) return;
  // An evaluation may follow each step, and one follows the last.
  device_.start_timeline({.keep_marks = 2 * config.timeline + 2});
  device_.reset_peak();
  device_.mark("build");
}

RunMemory::~RunMemory() {
  if (has_timeline_) device_.stop_timeline();
}

void RunMemory::mark_step(std::int64_t step) const {
  if (has_timeline_) device_.mark(concat("step ", step));
}

void RunMemory::mark_evaluation() const {
  if (has_timeline_) device_.mark("evaluation");
}

std::string RunMemory::write(const Config& config, const std::filesystem::path& run_dir, RunEnd end, double train_seconds) const {
  try {
    MemoryExport out{.title = title_of(run_dir), .is_planned = !has_timeline_, .config = config, .reserved_bytes = device_.reserved_bytes(),
                     .timeline = {}, .receipt = {}};
    out.metrics = run_dir / "metrics.jsonl";
    if (has_timeline_) {
      out.timeline = device_.timeline();
      out.receipt = make_receipt(out.timeline, device_.peak_bytes());
    }
    const double begin = now();
    const PlanOptions options{.timeline = true, .whole_windows = has_timeline_ && config.accumulate <= kMostWhole, .world_size = world_size_};
    const Plan plan = plan_training(config, options);
    const double plan_seconds = now() - begin;
    const Receipt planned = make_receipt(*plan.timeline, plan.ledger.peak_bytes());
    if (has_timeline_) {
      tell_as_planned(out.timeline, planned, out.receipt);
      out.planned_curve = planned_curve(out.timeline, plan);
    } else {
      out.timeline = *plan.timeline;
      out.receipt = planned;
      out.reserved_bytes = plan.reserved_bytes;
    }
    // After an OutOfMemory they are what one needs; else they should not be felt.
    if (end == RunEnd::out_of_memory || kNumPlans * plan_seconds < (has_timeline_ ? 0.5 : 0.05) * train_seconds)
      out.remedies = plan_remedies(config, {.world_size = world_size_}, plan, out.receipt);
    export_memory(run_dir, out);
    return "";
  } catch (const std::exception& error) {
    return concat("the memory report was not written: ", error.what());
  }
}

}  // namespace refrain
