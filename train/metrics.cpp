#include <refrain/train/metrics.h>

#include <refrain/core/check.h>
#include <refrain/core/io/file.h>
#include <refrain/train/tensorboard.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>
#include <sstream>

namespace refrain {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kColumns[] = {
    "epoch", "loss", "accuracy", "lr", "grad_norm", "samples_per_second", "data_wait_share",
    "bytes_sent", "live_bytes", "peak_bytes", "replayed_flops_share", "loss_scale", "lost_updates_share", "skipped_steps",
    "test_loss", "test_accuracy"};

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  char buffer[40];
  return {buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr};
}

std::optional<std::int64_t> parse_step(std::string_view text) {
  std::int64_t step = 0;
  return std::from_chars(text.data(), text.data() + text.size(), step).ec == std::errc() ? std::optional(step) : std::nullopt;
}

// Keeps whole lines for which `is_kept` holds; an absent file becomes `title`.
fs::path keep_lines(const fs::path& path, const std::string& title, const std::function<bool(std::string_view)>& is_kept) {
  std::string kept = title;
  std::error_code error;
  if (fs::exists(path, error)) {
    const std::string text = read_text_file(path);
    for (std::size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
      if (is_kept(std::string_view(text).substr(begin, end - begin))) kept += text.substr(begin, end + 1 - begin);
  }
  write_file_atomically(path, kept);
  return path;
}

fs::path prepare_jsonl(const fs::path& run_dir, std::int64_t step) {
  constexpr std::string_view kStart = "{\"step\":";
  return keep_lines(run_dir / "metrics.jsonl", "", [&](std::string_view line) {
    const auto row_step = line.starts_with(kStart) ? parse_step(line.substr(kStart.size())) : std::nullopt;
    return row_step && *row_step <= step;
  });
}

fs::path prepare_csv(const fs::path& run_dir, std::int64_t step) {
  std::string title = "step";
  for (const std::string_view column : kColumns) title += concat(',', column);
  return keep_lines(run_dir / "metrics.csv", title + "\n", [&](std::string_view line) {
    const auto row_step = parse_step(line);
    return row_step && *row_step <= step;
  });
}

}  // namespace

double wall_time() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

AppendFile::AppendFile(const fs::path& path)
    : path_(path), descriptor_(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666)) {
  check<StorageError>(descriptor_ >= 0, path.string(), ": cannot open: ", std::strerror(errno));
}

AppendFile::~AppendFile() { ::close(descriptor_); }

void AppendFile::append(const std::string& bytes) {
  const off_t before = ::lseek(descriptor_, 0, SEEK_END);
  ssize_t put;
  do put = ::write(descriptor_, bytes.data(), bytes.size());
  while (put < 0 && errno == EINTR);
  if (put == ssize_t(bytes.size())) return;
  const int error = put < 0 ? errno : ENOSPC;
  // Half a line is worse than none. When even that fails, the error below is the one that matters.
  if (put > 0 && ::ftruncate(descriptor_, before) != 0) {}
  fail<StorageError>(path_.string(), ": write failed: ", std::strerror(error));
}

MetricsWriter::MetricsWriter(const fs::path& run_dir, std::int64_t step)
    : jsonl_(prepare_jsonl(run_dir, step)), csv_(prepare_csv(run_dir, step)), events_(run_dir / tensorboard::file_name(wall_time())) {
  events_.append(tensorboard::version_record(wall_time()));
}

void MetricsWriter::write(std::int64_t step, const MetricsRow& row) {
  std::string json = concat("{\"step\":", step), csv = std::to_string(step);
  for (const auto& [name, value] : row) json += concat(",\"", name, "\":", std::isfinite(value) ? number_text(value) : "null");
  for (const std::string_view column : kColumns) {
    csv += ',';
    for (const auto& [name, value] : row)
      if (name == column) csv += number_text(value);
  }
  jsonl_.append(json + "}\n");
  csv_.append(csv + "\n");
  events_.append(tensorboard::scalars_record(wall_time(), step, row));
}

}  // namespace refrain
