// What the store's connections carry: frames of a type and bytes, with a limit on their length that the reader sets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace refrain::detail {

enum class FrameType : std::uint8_t {
  challenge = 1,  // server: its nonce
  hello,          // client: who it is, and that it holds the token
  welcome,        // server: its machine's name, and that it holds the token too
  refusal,        // server: why not
  beat,           // both ways: alive; a member's says where it is
  exchange,       // member: its part of an exchange
  exchanged,      // server: everybody's part
  suspicion,      // member: another cannot be reached
  overdue,        // member: its operation took too long
  abort,          // member: it ends the group, and why
  bye,            // member: it leaves, all is well
  all_left,       // server: so have all others
  verdict,        // server: the group is over; which rank, and why
  obituary,       // a launcher: one of its ranks has ended
};

struct Frame {
  FrameType type;
  std::string payload;
};

std::string encode(FrameType type, std::string_view payload);

// Bytes as they come, frames as they are whole. Holds no more bytes than came, and no frame above `limit`.
class FrameReader {
 public:
  explicit FrameReader(std::size_t limit) : limit_(limit) {}
  void set_limit(std::size_t limit) { limit_ = limit; }
  void add(std::string_view bytes) { bytes_ += bytes; }
  // The next whole one; throws DataError for what is no frame.
  std::optional<Frame> next();

 private:
  std::size_t limit_;
  std::string bytes_;
};

// A payload's fields, little-endian; texts and blobs with their length in front.
class PayloadWriter {
 public:
  PayloadWriter& number(std::int64_t value);
  PayloadWriter& text(std::string_view value);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Reads them back; throws DataError where there are too few bytes, or some left at done().
class PayloadReader {
 public:
  explicit PayloadReader(std::string_view bytes) : bytes_(bytes) {}
  std::int64_t number();
  std::int64_t number_in(std::int64_t least, std::int64_t most);
  std::string text(std::size_t most);
  void done() const;

 private:
  std::string_view take(std::size_t count);
  std::string_view bytes_;
};

}  // namespace refrain::detail
