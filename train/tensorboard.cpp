#include <refrain/train/tensorboard.h>

#include <refrain/core/check.h>

#include <unistd.h>

#include <array>
#include <bit>
#include <cstring>

namespace refrain::tensorboard {

static_assert(std::endian::native == std::endian::little, "records are little-endian");

namespace {

constexpr std::array<std::uint32_t, 256> kCrcTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = value & 1 ? value >> 1 ^ 0x82f63b78u : value >> 1;
    table[i] = value;
  }
  return table;
}();

template <class T>
void append(std::string& out, T value) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, &value, sizeof(T));
  out.append(bytes, sizeof(T));
}

// Protobuf: a field's key is its number and wire type; 0 varint, 1 eight bytes, 2 length and bytes, 5 four bytes.
void append_varint(std::string& out, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += char(value | 0x80);
  out += char(value);
}
void append_key(std::string& out, int field, int wire_type) { append_varint(out, std::uint64_t(field << 3 | wire_type)); }
void append_bytes(std::string& out, int field, std::string_view bytes) {
  append_key(out, field, 2);
  append_varint(out, bytes.size());
  out += bytes;
}

std::string record(const std::string& data) {
  std::string length, out;
  append(length, std::uint64_t(data.size()));
  out = length;
  append(out, masked_crc32c(length));
  out += data;
  append(out, masked_crc32c(data));
  return out;
}

std::string event(double wall_time) {
  std::string out;
  append_key(out, 1, 1);
  append(out, wall_time);
  return out;
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  std::uint32_t crc = 0xffffffffu;
  for (const char c : bytes) crc = kCrcTable[(crc ^ static_cast<unsigned char>(c)) & 0xff] ^ crc >> 8;
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

std::string version_record(double wall_time) {
  std::string message = event(wall_time);
  append_bytes(message, 3, "brain.Event:2");
  return record(message);
}

std::string scalars_record(double wall_time, std::int64_t step, const Scalars& scalars) {
  std::string message = event(wall_time);
  append_key(message, 2, 0);
  append_varint(message, std::uint64_t(step));
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    append_bytes(value, 1, tag);
    append_key(value, 2, 5);
    append(value, float(number));
    append_bytes(summary, 1, value);
  }
  append_bytes(message, 5, summary);
  return record(message);
}

std::string file_name(double wall_time) {
  char host[256] = "host";
  ::gethostname(host, sizeof host - 1);
  return concat("events.out.tfevents.", std::int64_t(wall_time), ".", host, ".", ::getpid());
}

}  // namespace refrain::tensorboard
