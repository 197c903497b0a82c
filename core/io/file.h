// Files by descriptor: positioned reads that say what was missing, and writers that report every failure.
// Reading wrong or missing input throws DataError, writing throws StorageError; both name the path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace refrain {

// CRC-32 (the one of gzip and PNG) of data that arrives in pieces.
class Crc32 {
 public:
  void update(std::span<const std::byte> bytes);
  std::uint32_t value() const { return value_; }

 private:
  std::uint32_t value_ = 0;
};

// A regular file open for reading. Reads are positioned, so several threads may share it.
class FileReader {
 public:
  // Throws DataError when the file is absent, unreadable or not a regular file.
  explicit FileReader(const std::filesystem::path& path);
  ~FileReader();
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const { return size_; }
  // Fills `bytes` from `offset`. Throws DataError when the file ends before.
  void read(std::int64_t offset, std::span<std::byte> bytes) const;
  // As many bytes as there are, at most bytes.size().
  std::size_t read_some(std::int64_t offset, std::span<std::byte> bytes) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
};

// A new file. It is complete only after close(); destroyed before that, it is removed.
class FileWriter {
 public:
  // Throws StorageError, also when the path exists already.
  explicit FileWriter(const std::filesystem::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::int64_t size() const { return size_; }
  std::uint32_t crc32() const { return crc_.value(); }
  void write(std::span<const std::byte> bytes);
  void write(std::string_view text);
  // Syncs to the device, closes, and reads the file back against size and checksum.
  void close();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t size_ = 0;
  Crc32 crc_;
  bool is_complete_ = false;
};

// Replaces `path` by what is written, all or nothing: written beside it, synced, verified, renamed, directory synced.
// Whatever happens before commit() returns, the old file is still there.
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path);
  ~AtomicFile();
  FileWriter& writer() { return writer_; }
  void commit();

 private:
  std::filesystem::path path_;
  FileWriter writer_;
  bool is_committed_ = false;
};

void write_file_atomically(const std::filesystem::path& path, std::string_view text);

// The whole file. Throws DataError when it is longer than `max_bytes`.
std::string read_text_file(const std::filesystem::path& path, std::int64_t max_bytes = std::int64_t{1} << 30);

// Size and checksum of a file as it is on the device now.
struct FileDigest {
  std::int64_t size = 0;
  std::uint32_t crc32 = 0;
  friend bool operator==(const FileDigest&, const FileDigest&) = default;
};
FileDigest digest_file(const std::filesystem::path& path);

// Makes renames and new names inside a directory durable.
void sync_directory(const std::filesystem::path& directory);

// mkdir -p, as StorageError.
void make_directories(const std::filesystem::path& directory);

// A name beside `path` that nobody else uses: `.NAME.tmp-PID-COUNTER`.
std::filesystem::path temporary_name(const std::filesystem::path& path);

}  // namespace refrain
