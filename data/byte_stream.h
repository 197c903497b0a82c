// The bytes of a file in order, unpacked when the file is gzip (RFC 1952), told by its first two bytes and not by its name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

namespace refrain {

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills up to `count` bytes; fewer only at the end. Throws DataError for a damaged or cut gzip file.
  virtual std::size_t read(std::uint8_t* bytes, std::size_t count) = 0;

  // Throws DataError when the file cannot be opened.
  static std::unique_ptr<ByteStream> open(const std::filesystem::path& path);
};

// Bytes that the file's stream will give, as its length or, of a gzip file, its last four bytes say (of a single member
// below 4 GiB). Nothing is unpacked. Throws DataError when the file cannot be opened.
std::int64_t unpacked_size(const std::filesystem::path& path);

// Reads at most `expected` bytes into a vector that grows as they arrive: a header's promise alone reserves nothing.
std::vector<std::uint8_t> read_growing(ByteStream& stream, std::int64_t expected);

}  // namespace refrain
