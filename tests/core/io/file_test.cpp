#include <refrain/core/check.h>
#include <refrain/core/io/file.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/scratch_directory.h>

#include <csignal>
#include <sys/resource.h>

using namespace refrain;
using refrain::testing::ScratchDirectory;

namespace {

std::size_t count_files(const std::filesystem::path& directory) {
  return std::size_t(std::distance(std::filesystem::directory_iterator(directory), {}));
}

// Files may not grow beyond `bytes` while this lives: what a full disk looks like to write().
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : old_handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit{bytes, old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_{};
  void (*old_handler_)(int);
};

}  // namespace

TEST_CASE("crc32: pieces give the value of the whole, 123456789 gives cbf43926") {
  const std::string text = "123456789";
  Crc32 whole, pieces;
  whole.update(std::as_bytes(std::span(text)));
  pieces.update(std::as_bytes(std::span(text)).first(4));
  pieces.update(std::as_bytes(std::span(text)).subspan(4));
  CHECK(whole.value() == 0xcbf43926u);
  CHECK(pieces.value() == 0xcbf43926u);
}

TEST_CASE("atomic file: replaces the old file and leaves nothing beside it") {
  const ScratchDirectory scratch;
  write_file_atomically(scratch / "a", "old");
  write_file_atomically(scratch / "a", "new content");
  CHECK(read_text_file(scratch / "a") == "new content");
  CHECK(count_files(scratch.path()) == 1);
}

TEST_CASE("atomic file: without commit the old file stays and the new one is gone") {
  const ScratchDirectory scratch;
  write_file_atomically(scratch / "a", "old");
  {
    AtomicFile file(scratch / "a");
    file.writer().write("half of the n");
  }
  CHECK(read_text_file(scratch / "a") == "old");
  CHECK(count_files(scratch.path()) == 1);
}

TEST_CASE("atomic file: a full disk loses nothing and is named with path and reason") {
  const ScratchDirectory scratch;
  write_file_atomically(scratch / "a", "old");
  const std::string big(300'000, 'x');
  std::string message;
  {
    const FileSizeLimit limit(100'000);
    try {
      write_file_atomically(scratch / "a", big);
    } catch (const StorageError& error) {
      message = error.what();
    }
  }
  CHECK(message.find((scratch / ".a.tmp").string()) == 0);
  CHECK(message.find("File too large") != std::string::npos);
  CHECK(read_text_file(scratch / "a") == "old");
  CHECK(count_files(scratch.path()) == 1);
}

TEST_CASE("atomic file: a directory that is not there is a StorageError") {
  const ScratchDirectory scratch;
  CHECK_THROWS_AS(write_file_atomically(scratch / "no" / "file", "x"), StorageError);
}

TEST_CASE("file reader: absent files, directories and short files are DataErrors") {
  const ScratchDirectory scratch;
  CHECK_THROWS_AS(FileReader(scratch / "absent"), DataError);
  CHECK_THROWS_AS(FileReader(scratch.path()), DataError);
  const FileReader file(scratch.write("short", "abc"));
  std::byte bytes[4];
  CHECK_THROWS_WITH(file.read(1, bytes), Catch::Contains("expected 4 bytes at offset 1, found 2"));
  CHECK(file.read_some(1, bytes) == 2);
  CHECK_THROWS_AS(read_text_file(scratch / "short", 2), DataError);
}

TEST_CASE("temporary names: one that a dead process left is not used again") {
  const ScratchDirectory scratch;
  const std::string first = temporary_name(scratch / "a").filename().string();
  const std::size_t dash = first.rfind('-');
  scratch.write(first.substr(0, dash + 1) + std::to_string(std::stoi(first.substr(dash + 1)) + 1), "left behind");
  write_file_atomically(scratch / "a", "whole");
  CHECK(read_text_file(scratch / "a") == "whole");
}
