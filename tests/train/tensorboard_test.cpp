#include <refrain/core/check.h>
#include <refrain/tests/support/catch.h>
#include <refrain/train/tensorboard.h>

#include <cstring>

using namespace refrain;

namespace {

template <class T>
T at(const std::string& bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

TEST_CASE("tensorboard: the checksum is CRC-32C as TFRecord masks it") {
  // CRC-32C of "123456789" is e3069283 (RFC 3720); masked: rotated right by 15, plus a282ead8.
  const std::uint32_t crc = 0xe3069283u;
  CHECK(tensorboard::masked_crc32c("123456789") == (crc >> 15 | crc << 17) + 0xa282ead8u);
}

TEST_CASE("tensorboard: a record frames its message with length and checksums of both") {
  const std::string record = tensorboard::scalars_record(12.5, 300, {{"loss", 0.25}});
  const std::size_t length = std::size_t(at<std::uint64_t>(record, 0));
  REQUIRE(record.size() == 8 + 4 + length + 4);
  CHECK(at<std::uint32_t>(record, 8) == tensorboard::masked_crc32c(record.substr(0, 8)));
  CHECK(at<std::uint32_t>(record, 12 + length) == tensorboard::masked_crc32c(record.substr(12, length)));
}

TEST_CASE("tensorboard: an event holds wall time, step and the scalars in protobuf's encoding") {
  const std::string record = tensorboard::scalars_record(12.5, 300, {{"loss", 0.25}});
  const std::string message = record.substr(12, record.size() - 16);
  std::string expected = "\x09";                                         // field 1, eight bytes
  expected += std::string("\0\0\0\0\0\0\x29\x40", 8);                    // 12.5
  expected += "\x10\xac\x02";                                            // field 2: 300
  expected += "\x2a\x0d" "\x0a\x0b" "\x0a\x04loss" "\x15";               // field 5 { field 1 { field 1 "loss", field 2 } }
  expected += std::string("\0\0\x80\x3e", 4);                            // 0.25
  CHECK(message == expected);
  CHECK(tensorboard::version_record(1).find("brain.Event:2") != std::string::npos);
}
