// The course of a run on disk, a row at a time: metrics.jsonl, metrics.csv and TensorBoard events of one run directory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace refrain {

// A file that only grows; each append is one write, so a line is there whole or not at all. Throws StorageError.
class AppendFile {
 public:
  explicit AppendFile(const std::filesystem::path& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;
  void append(const std::string& bytes);

 private:
  std::filesystem::path path_;
  int descriptor_;
};

// Names and values of one row; "step" is added in front.
using MetricsRow = std::vector<std::pair<std::string, double>>;

class MetricsWriter {
 public:
  // Continues what a run left there up to `step` and forgets later rows: the steps after a snapshot are done again.
  MetricsWriter(const std::filesystem::path& run_dir, std::int64_t step);
  // Names outside the columns fixed in metrics.cpp go into the .jsonl and the events alone.
  void write(std::int64_t step, const MetricsRow& row);

 private:
  AppendFile jsonl_, csv_, events_;
};

// Seconds since 1970.
double wall_time();

}  // namespace refrain
