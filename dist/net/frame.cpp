#include <refrain/core/check.h>
#include <refrain/dist/net/frame.h>

#include <algorithm>

namespace refrain::detail {

namespace {

constexpr std::string_view kMagic = "RFN1";
constexpr std::size_t kHeader = 9;  // magic, type, length

std::uint64_t little_endian(std::string_view bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes.size(); i-- > 0;) value = value << 8 | std::uint8_t(bytes[i]);
  return value;
}

}  // namespace

std::string encode(FrameType type, std::string_view payload) {
  std::string frame(kMagic);
  frame += char(type);
  for (int shift = 0; shift < 32; shift += 8) frame += char(payload.size() >> shift);
  frame += payload;
  return frame;
}

std::optional<Frame> FrameReader::next() {
  const std::size_t seen = std::min(bytes_.size(), kMagic.size());
  check<DataError>(bytes_.compare(0, seen, kMagic, 0, seen) == 0, "not a frame of refrain's store");
  if (bytes_.size() < kHeader) return {};
  const std::uint8_t type = std::uint8_t(bytes_[4]);
  check<DataError>(type >= std::uint8_t(FrameType::challenge) && type <= std::uint8_t(FrameType::obituary), "unknown frame type ",
                   int(type));
  const std::size_t length = little_endian(std::string_view(bytes_).substr(5, 4));
  check<DataError>(length <= limit_, "frame of ", length, " bytes, at most ", limit_, " are taken");
  if (bytes_.size() < kHeader + length) return {};
  Frame frame{FrameType(type), bytes_.substr(kHeader, length)};
  bytes_.erase(0, kHeader + length);
  return frame;
}

PayloadWriter& PayloadWriter::number(std::int64_t value) {
  for (int shift = 0; shift < 64; shift += 8) bytes_ += char(std::uint64_t(value) >> shift);
  return *this;
}

PayloadWriter& PayloadWriter::text(std::string_view value) {
  number(std::int64_t(value.size()));
  bytes_ += value;
  return *this;
}

std::string_view PayloadReader::take(std::size_t count) {
  check<DataError>(count <= bytes_.size(), "frame ends early");
  const std::string_view taken = bytes_.substr(0, count);
  bytes_.remove_prefix(count);
  return taken;
}

std::int64_t PayloadReader::number() { return std::int64_t(little_endian(take(8))); }

std::int64_t PayloadReader::number_in(std::int64_t least, std::int64_t most) {
  const std::int64_t value = number();
  check<DataError>(value >= least && value <= most, "number out of range in a frame");
  return value;
}

std::string PayloadReader::text(std::size_t most) { return std::string(take(std::size_t(number_in(0, std::int64_t(most))))); }

void PayloadReader::done() const { check<DataError>(bytes_.empty(), "frame is too long"); }

}  // namespace refrain::detail
