#include <refrain/core/io/snapshot.h>

#include <refrain/core/check.h>

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <set>
#include <sstream>

namespace refrain {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kManifest = "MANIFEST";
constexpr std::string_view kTitle = "refrain snapshot 1\n";
constexpr std::string_view kStepPrefix = "step-";

std::string hex(std::uint32_t value) {
  char text[9];
  std::snprintf(text, sizeof text, "%08x", unsigned(value));
  return text;
}

std::uint32_t crc32_of(std::string_view text) {
  Crc32 crc;
  crc.update(std::as_bytes(std::span(text.data(), text.size())));
  return crc.value();
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name != kManifest && name.find_first_of("/\n") == std::string::npos;
}

// The number in `step-N`, or -1.
std::int64_t step_of(const std::string& name) {
  if (!name.starts_with(kStepPrefix)) return -1;
  std::int64_t step = -1;
  const char* end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(name.data() + kStepPrefix.size(), end, step);
  return error == std::errc() && rest == end ? step : -1;
}

struct Found {
  std::int64_t step;
  fs::path path;
};

// Snapshots newest first, and half-written leftovers.
std::pair<std::vector<Found>, std::vector<fs::path>> list_snapshots(const fs::path& run_dir) {
  std::vector<Found> found;
  std::vector<fs::path> leftovers;
  std::error_code error;
  for (fs::directory_iterator it(run_dir / "snapshots", error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (const std::int64_t step = step_of(name); step >= 0) found.push_back({step, it->path()});
    else if (name.starts_with(".") && name.find(".tmp-") != std::string::npos) leftovers.push_back(it->path());
  }
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.step > b.step; });
  std::sort(leftovers.begin(), leftovers.end());
  return {found, leftovers};
}

// Whether another process that owns a temporary name `.NAME.tmp-PID-COUNTER` still runs on this machine. This process has
// none while it prunes; in a container its number may be that of a dead one.
bool has_living_owner(const fs::path& leftover) {
  const std::string name = leftover.filename().string();
  const std::size_t at = name.rfind(".tmp-");
  long pid = 0;
  const auto [rest, error] = std::from_chars(name.data() + at + 5, name.data() + name.size(), pid);
  return error == std::errc() && *rest == '-' && pid > 0 && pid != ::getpid() && (::kill(pid_t(pid), 0) == 0 || errno == EPERM);
}

// The MANIFEST goes first: what is left of an interrupted removal is not complete.
void remove_snapshot(const fs::path& directory) {
  std::error_code error;
  fs::remove(directory / kManifest, error);
  fs::remove_all(directory, error);
  check<StorageError>(!error, directory.string(), ": cannot remove: ", error.message());
}

}  // namespace

SnapshotWriter::SnapshotWriter(const fs::path& directory) : directory_(directory), temporary_(temporary_name(directory)) {
  make_directories(directory_.parent_path());
  std::error_code error;
  fs::create_directory(temporary_, error);
  check<StorageError>(!error, temporary_.string(), ": cannot make directory: ", error.message());
}

SnapshotWriter::~SnapshotWriter() {
  std::error_code error;
  fs::remove_all(temporary_, error);
}

void SnapshotWriter::add(const std::string& name, const std::function<void(FileWriter&)>& write) {
  check(is_plain_name(name), "SnapshotWriter: '", name, "' is no name for a file of a snapshot");
  FileWriter file(temporary_ / name);
  write(file);
  file.close();
  files_.push_back({name, {file.size(), file.crc32()}});
}

void SnapshotWriter::commit() {
  std::string text(kTitle);
  for (const Listed& file : files_) text += concat(hex(file.digest.crc32), ' ', file.digest.size, ' ', file.name, '\n');
  text += concat("end ", hex(crc32_of(text)), '\n');
  FileWriter manifest(temporary_ / kManifest);
  manifest.write(text);
  manifest.close();
  sync_directory(temporary_);

  // Exchanged rather than removed first: at no moment is there no snapshot of this step.
  std::error_code error;
  const unsigned flags = fs::exists(directory_, error) ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  int result = ::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, directory_.c_str(), flags);
  if (result != 0 && (errno == EINVAL || errno == ENOSYS)) {  // a file system without renameat2's flags
    if (flags == RENAME_EXCHANGE) remove_snapshot(directory_);
    result = ::rename(temporary_.c_str(), directory_.c_str());
  }
  check<StorageError>(result == 0, directory_.string(), ": rename failed: ", std::strerror(errno));
  sync_directory(directory_.parent_path());
}

void verify_snapshot(const fs::path& directory) {
  const fs::path path = directory / kManifest;
  const std::string text = read_text_file(path, std::int64_t{1} << 24);
  const std::size_t end = text.rfind("end ");
  check<DataError>(text.starts_with(kTitle) && end != std::string::npos && text.substr(end) == concat("end ", hex(crc32_of(text.substr(0, end))), '\n'),
                   path.string(), ": is cut short or changed");
  std::istringstream lines(text.substr(kTitle.size(), end - kTitle.size()));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string crc, name;
    std::int64_t size = 0;
    fields >> crc >> size;
    fields.get();
    std::getline(fields, name);
    check<DataError>(!fields.fail() && is_plain_name(name), path.string(), ": line '", line, "' is not a file's");
    const FileDigest digest = digest_file(directory / name);
    check<DataError>(digest.size == size, (directory / name).string(), ": expected ", size, " bytes, found ", digest.size);
    check<DataError>(hex(digest.crc32) == crc, (directory / name).string(), ": expected checksum ", crc, ", found ", hex(digest.crc32));
  }
}

fs::path snapshot_directory(const fs::path& run_dir, std::int64_t step) { return run_dir / "snapshots" / concat(kStepPrefix, step); }

SnapshotSearch find_latest_snapshot(const fs::path& run_dir) {
  SnapshotSearch search;
  const auto [found, leftovers] = list_snapshots(run_dir);
  for (const fs::path& path : leftovers) search.skipped.push_back({path, "was still being written when its process ended"});
  for (const Found& snapshot : found) {
    try {
      verify_snapshot(snapshot.path);
      search.latest = snapshot.path;
      break;
    } catch (const DataError& error) {
      search.skipped.push_back({snapshot.path, error.what()});
    }
  }
  return search;
}

void prune_snapshots(const fs::path& run_dir, std::int64_t keep) {
  check(keep >= 1, "prune_snapshots: expected to keep at least 1 snapshot, got ", keep);
  const auto [found, leftovers] = list_snapshots(run_dir);
  std::int64_t kept = 0;
  for (const Found& snapshot : found) {
    if (kept >= keep) {
      remove_snapshot(snapshot.path);
      continue;
    }
    try {
      verify_snapshot(snapshot.path);
      ++kept;
    } catch (const DataError&) {  // a torn one is no reason to give up an older whole one
    }
  }
  for (const fs::path& path : leftovers)
    if (!has_living_owner(path)) remove_snapshot(path);
}

}  // namespace refrain
