#include <refrain/kernels/emulator/ptx/fatbinary.h>
#include <refrain/kernels/emulator/ptx/module.h>

#include <cstring>

namespace refrain::emulator::ptx {

namespace {

constexpr std::uint32_t kMagic = 0xba55ed50;
constexpr std::size_t kHeaderBytes = 16;

template <class T>
T read_at(std::string_view bytes, std::size_t offset) {
  if (offset + sizeof(T) > bytes.size()) throw Error("fat binary: cut short");
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

}  // namespace

std::size_t fatbinary_bytes(const void* start) {
  const std::string_view head(static_cast<const char*>(start), kHeaderBytes);
  if (read_at<std::uint32_t>(head, 0) != kMagic) throw Error("fat binary: unknown container");
  return kHeaderBytes + read_at<std::uint64_t>(head, 8);
}

std::vector<FatbinaryEntry> read_fatbinary(std::string_view bytes) {
  std::vector<FatbinaryEntry> entries;
  while (bytes.size() >= kHeaderBytes) {
    if (read_at<std::uint32_t>(bytes, 0) == 0) {  // padding between containers
      bytes.remove_prefix(8);
      continue;
    }
    const std::size_t size = fatbinary_bytes(bytes.data());
    if (size > bytes.size()) throw Error("fat binary: cut short");
    for (std::size_t at = kHeaderBytes; at < size;) {
      const auto kind = read_at<std::uint16_t>(bytes, at);
      const auto header = read_at<std::uint32_t>(bytes, at + 4);
      const auto length = read_at<std::uint64_t>(bytes, at + 8);
      const auto compressed = read_at<std::uint32_t>(bytes, at + 16);
      const auto architecture = read_at<std::uint32_t>(bytes, at + 28);
      if (header == 0 || at + header + length > size) throw Error("fat binary: cut short");
      if (compressed != 0) throw Error("fat binary: compressed; nvcc must be given --no-compress");
      if (kind == FatbinaryEntry::ptx || kind == FatbinaryEntry::cubin) {
        std::string_view data = bytes.substr(at + header, length);
        if (kind == FatbinaryEntry::ptx) data = data.substr(0, data.find('\0'));
        entries.push_back({FatbinaryEntry::Kind(kind), int(architecture), data});
      }
      at += header + length;
    }
    bytes.remove_prefix(size);
  }
  return entries;
}

}  // namespace refrain::emulator::ptx
