#include <refrain/core/io/file.h>

#include <refrain/core/check.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <vector>

namespace refrain {

namespace {

std::string error_text(int error) { return std::strerror(error); }

}  // namespace

void Crc32::update(std::span<const std::byte> bytes) {
  value_ = std::uint32_t(crc32_z(value_, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

FileReader::FileReader(const std::filesystem::path& path) : path_(path) {
  // Without O_NONBLOCK a named pipe in place of a file would hang the open.
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  check<DataError>(descriptor_ >= 0, path.string(), ": cannot open: ", error_text(errno));
  struct stat status {};
  const bool is_known = ::fstat(descriptor_, &status) == 0;
  if (!is_known || !S_ISREG(status.st_mode)) {
    ::close(descriptor_);
    fail<DataError>(path.string(), ": expected a regular file");
  }
  size_ = status.st_size;
}

FileReader::~FileReader() { ::close(descriptor_); }

std::size_t FileReader::read_some(std::int64_t offset, std::span<std::byte> bytes) const {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::pread(descriptor_, bytes.data() + done, bytes.size() - done, off_t(offset + std::int64_t(done)));
    if (got < 0 && errno == EINTR) continue;
    check<DataError>(got >= 0, path_.string(), ": read failed: ", error_text(errno));
    if (got == 0) break;
    done += std::size_t(got);
  }
  return done;
}

void FileReader::read(std::int64_t offset, std::span<std::byte> bytes) const {
  const std::size_t got = read_some(offset, bytes);
  check<DataError>(got == bytes.size(), path_.string(), ": expected ", bytes.size(), " bytes at offset ", offset, ", found ", got);
}

FileWriter::FileWriter(const std::filesystem::path& path) : path_(path) {
  descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  check<StorageError>(descriptor_ >= 0, path.string(), ": cannot create: ", error_text(errno));
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!is_complete_) ::unlink(path_.c_str());
}

void FileWriter::write(std::span<const std::byte> bytes) {
  invariant(descriptor_ >= 0, "write to a closed file");
  // Blocks of a MiB: the checksum reads what is still in cache.
  constexpr std::size_t kBlock = std::size_t{1} << 20;
  while (!bytes.empty()) {
    const std::span<const std::byte> block = bytes.first(std::min(kBlock, bytes.size()));
    const ssize_t put = ::write(descriptor_, block.data(), block.size());
    if (put < 0 && errno == EINTR) continue;
    check<StorageError>(put > 0, path_.string(), ": write of ", block.size(), " bytes failed after ", size_, ": ", error_text(put < 0 ? errno : EIO));
    crc_.update(bytes.first(std::size_t(put)));
    size_ += put;
    bytes = bytes.subspan(std::size_t(put));
  }
}

void FileWriter::write(std::string_view text) { write(std::as_bytes(std::span(text.data(), text.size()))); }

void FileWriter::close() {
  invariant(descriptor_ >= 0, "close of a closed file");
  check<StorageError>(::fsync(descriptor_) == 0, path_.string(), ": sync failed: ", error_text(errno));
  const int result = ::close(descriptor_);
  descriptor_ = -1;
  check<StorageError>(result == 0, path_.string(), ": close failed: ", error_text(errno));
  FileDigest found;
  try {
    found = digest_file(path_);
  } catch (const DataError& error) {
    fail<StorageError>(error.what());
  }
  check<StorageError>(found == FileDigest{size_, crc_.value()}, path_.string(), ": what was read back differs from what was written (",
                      found.size, " bytes, expected ", size_, ")");
  is_complete_ = true;
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path), writer_(temporary_name(path)) {}

AtomicFile::~AtomicFile() {
  if (!is_committed_) ::unlink(writer_.path().c_str());
}

void AtomicFile::commit() {
  writer_.close();
  check<StorageError>(::rename(writer_.path().c_str(), path_.c_str()) == 0, path_.string(), ": rename failed: ", error_text(errno));
  is_committed_ = true;
  sync_directory(path_.parent_path());
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.writer().write(text);
  file.commit();
}

std::string read_text_file(const std::filesystem::path& path, std::int64_t max_bytes) {
  const FileReader file(path);
  check<DataError>(file.size() <= max_bytes, path.string(), ": expected at most ", max_bytes, " bytes, found ", file.size());
  std::string text(std::size_t(file.size()), '\0');
  file.read(0, std::as_writable_bytes(std::span(text.data(), text.size())));
  return text;
}

FileDigest digest_file(const std::filesystem::path& path) {
  const FileReader file(path);
  std::vector<std::byte> block(std::size_t{1} << 20);
  Crc32 crc;
  std::int64_t size = 0;
  for (;;) {
    const std::size_t got = file.read_some(size, block);
    if (got == 0) return {size, crc.value()};
    crc.update(std::span(block).first(got));
    size += std::int64_t(got);
  }
}

void sync_directory(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory.empty() ? std::filesystem::path(".") : directory;
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  check<StorageError>(descriptor >= 0, path.string(), ": cannot open directory: ", error_text(errno));
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some network file systems cannot sync a directory and say so; there is nothing better to do there.
  check<StorageError>(result == 0 || error == EINVAL, path.string(), ": sync of the directory failed: ", error_text(error));
}

void make_directories(const std::filesystem::path& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  check<StorageError>(!error, directory.string(), ": cannot make directory: ", error.message());
}

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  static std::atomic<unsigned> counter{0};
  for (;;) {  // a dead process of the same number (usual in containers) may have left one
    const std::filesystem::path name = path.parent_path() / concat(".", path.filename().string(), ".tmp-", ::getpid(), "-", counter++);
    std::error_code error;
    if (!std::filesystem::exists(name, error)) return name;
  }
}

}  // namespace refrain
