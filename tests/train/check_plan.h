// A training against its plan: memory to the byte, in total, by kind and by module, and work.
#pragma once

#include <refrain/core/io/file.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/scratch_directory.h>
#include <refrain/train/device_choice.h>
#include <refrain/train/plan.h>
#include <refrain/train/run.h>

#include <filesystem>
#include <map>

#include <nlohmann/json.hpp>

namespace refrain::testing {

using Composition = std::map<std::pair<std::string, MemoryKind>, std::int64_t>;
inline Composition composition(const Ledger& ledger) {
  Composition sums;
  for (const PeakEntry& entry : ledger.entries_at_peak()) sums[{entry.module->text, entry.kind}] += entry.bytes;
  return sums;
}

// Plans a training and runs it, on a device that nobody has used.
inline void check_plan(const ScratchDirectory& scratch, Config config, const Device& device = Device::new_cpu()) {
  static int number = 0;
  if (config.precision == "16-true") config.lr = config.eps = 1e-3;  // Adam's usual eps vanishes in f16
  config.run_dir = scratch / ("run-" + std::to_string(number++));
  INFO(to_toml(config));
  config.device = device_word(device);
  const Plan plan = plan_training(config);
  const RunResult result = run_training(config, {.device = device});
  const Ledger run = device.ledger();
  CHECK(plan.ledger.peak_bytes() == run.peak_bytes());
  CHECK(plan.reserved_bytes == device.reserved_bytes());
  CHECK(plan.ledger.kinds_at_peak() == run.kinds_at_peak());
  CHECK(plan.ledger.peak_per_kind() == run.peak_per_kind());
  CHECK(composition(plan.ledger) == composition(run));
  const nlohmann::json summary = nlohmann::json::parse(read_text_file(std::filesystem::path(config.run_dir) / "summary.json"));
  std::filesystem::remove_all(config.run_dir);  // snapshots of many runs fill a disk
  CHECK(plan.ledger.peak_bytes() == summary["peak_bytes"]["total"].get<std::int64_t>());
  CHECK(plan.reserved_bytes == summary["reserved_peak_bytes"].get<std::int64_t>());
  CHECK(plan.num_parameters == summary["num_parameters"].get<std::int64_t>());
  CHECK(plan.steps == result.steps);
  if (summary["skipped_steps"] != 0) return;  // windows that were run and not counted
  CHECK(plan.run.total.flops == summary["flops"].get<double>());
  CHECK(plan.replayed_share() == summary["replayed_flops_share"].get<double>());
  CHECK(plan.config.run_dir == config.run_dir);
}

}  // namespace refrain::testing
