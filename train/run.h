// A whole run in a run directory: config.toml as resolved, metrics.jsonl, metrics.csv, TensorBoard events, snapshots,
// and at the end report.txt and summary.json. Reports progress through hooks and prints nothing.
#pragma once

#include <refrain/dist/process_group.h>
#include <refrain/train/config.h>
#include <refrain/train/trainer.h>

#include <functional>
#include <optional>
#include <string>

namespace refrain {

// The version of this library, such as 0.1.0.
std::string_view version();

struct Progress {
  std::int64_t step = 0, total_steps = 0;
  double epoch = 0;                     // 1.5: halfway through the second
  std::int64_t epochs = 0;
  double loss = 0, average_loss = 0;    // of the last step; decaying average
  double accuracy = 0;                  // decaying average
  double lr = 0, grad_norm = 0;
  double loss_scale = 1;
  double lost_updates_share = 0;        // decaying average: elements whose update rounding has swallowed
  std::int64_t skipped_steps = 0;       // since the run began
  double samples_per_second = 0;
  double data_wait_share = 0;           // of the time of the steps
  double replayed_flops_share = 0;
  std::int64_t live_bytes = 0, peak_bytes = 0;
  double seconds_left = 0;
};

struct RunHooks {
  std::function<void(const Config& resolved, std::int64_t num_parameters)> on_start = {};
  std::function<void(const Progress&)> on_step = {};
  std::function<void(std::int64_t step, double epoch, const Evaluation&)> on_evaluation = {};
  std::function<void(const std::string& note)> on_note = {};  // what is worth a line: a resume, a skipped snapshot
  std::function<bool()> should_stop = {};                     // asked after every step: save a snapshot and return
};

struct RunOptions {
  bool resume = false;  // continue from the newest complete snapshot; without one, from the beginning
  std::optional<Device> device = {};  // none: as the configuration says
  // The ranks that train together, on that device; null: with a strategy those that the environment tells of (join_group.h),
  // else this process alone.
  std::shared_ptr<ProcessGroup> group = {};
};

struct RunResult {
  bool is_finished = false;  // false: stopped by should_stop, to be resumed
  bool is_main = true;       // rank 0, which speaks for all
  std::int64_t steps = 0;
  double train_seconds = 0;  // of all steps, those before a resume included; without evaluations and snapshots
  double samples_per_second = 0;
  Evaluation test;           // of a finished run
  std::int64_t peak_bytes = 0;
};

// Trains as the configuration says; `config.run_dir` must be set. Of several ranks, rank 0 alone writes files and is heard of
// through hooks; all read the data and, to resume, the run directory. Throws RankLost when another rank ends early. Throws InvalidArgument when it holds a run already
// and resume is off, DeviceUnavailable, DataError, StorageError, OutOfMemory, NonFinite.
RunResult run_training(Config config, const RunOptions& options = {}, const RunHooks& hooks = {});

// Test loss and accuracy of a run directory's newest snapshot, by one process.
Evaluation run_evaluation(Config config, const RunOptions& options = {}, const RunHooks& hooks = {});

// Whether a run has been started there.
bool holds_run(const std::filesystem::path& run_dir);

}  // namespace refrain
