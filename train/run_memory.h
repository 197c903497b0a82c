// What a run leaves behind about its memory: memory.json, memory.csv, trace.json, memory.svg and report.html in the run directory.
// With the key `timeline` they are of the last steps as measured, with the plan's curve beside them; without it they are the plan's.
#pragma once

#include <refrain/core/device.h>
#include <refrain/train/config.h>

#include <filesystem>
#include <string>

namespace refrain {

enum class RunEnd { complete_or_stopped, out_of_memory };

class RunMemory {
 public:
  // Starts the device's timeline where the configuration wants one; to be made before anything of the run is. The peak then
  // counts from here.
  RunMemory(const Config& config, const Device& device, int world_size = 1);
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

  // What follows belongs to this part of the program.
  void mark_step(std::int64_t step) const;
  void mark_evaluation() const;

  // Writes the files; `config` is the resolved one. A training is never lost over its report: what goes wrong here is the text
  // that comes back, and all is well when that is empty. Remedies are planned when that takes little beside `train_seconds`, and
  // always after an OutOfMemory.
  std::string write(const Config& config, const std::filesystem::path& run_dir, RunEnd end, double train_seconds) const;

 private:
  Device device_;
  bool has_timeline_;
  int world_size_;
};

}  // namespace refrain
