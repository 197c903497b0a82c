// Snapshot directories: RUN/snapshots/step-N/ with a MANIFEST that lists every file with size and checksum. A directory
// is written under a temporary name and renamed when all of it is on the device, so a torn one is never taken for whole.
#pragma once

#include <refrain/core/io/file.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace refrain {

// Collects the files of one snapshot. Destroyed before commit(), it leaves nothing behind.
class SnapshotWriter {
 public:
  // `directory` is the final place, such as RUN/snapshots/step-40. Throws StorageError.
  explicit SnapshotWriter(const std::filesystem::path& directory);
  ~SnapshotWriter();
  SnapshotWriter(const SnapshotWriter&) = delete;
  SnapshotWriter& operator=(const SnapshotWriter&) = delete;

  // Adds the file `name`; `write` fills it.
  void add(const std::string& name, const std::function<void(FileWriter&)>& write);
  // Writes the MANIFEST, syncs, and puts the directory in place; an older one of the same name is exchanged for it.
  void commit();

 private:
  struct Listed {
    std::string name;
    FileDigest digest;
  };
  std::filesystem::path directory_, temporary_;
  std::vector<Listed> files_;
};

// Throws DataError saying what is missing or differs unless every file of the MANIFEST is there, whole.
void verify_snapshot(const std::filesystem::path& directory);

struct SnapshotSearch {
  struct Skipped {
    std::filesystem::path path;
    std::string reason;
  };
  std::optional<std::filesystem::path> latest;  // the newest complete one
  std::vector<Skipped> skipped;                 // newer ones that are not complete, and what was left half-written
};

std::filesystem::path snapshot_directory(const std::filesystem::path& run_dir, std::int64_t step);

// Looks through RUN/snapshots, newest first. A directory without snapshots is no error: `latest` is empty.
SnapshotSearch find_latest_snapshot(const std::filesystem::path& run_dir);

// Removes all but the `keep` newest snapshots, and what dead processes left half-written. The newest complete one stays.
void prune_snapshots(const std::filesystem::path& run_dir, std::int64_t keep);

}  // namespace refrain
