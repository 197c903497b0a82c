// What nvcc embeds in an object: a container of PTX texts and cubins, one an architecture.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace refrain::emulator::ptx {

struct FatbinaryEntry {
  enum Kind : std::uint16_t { ptx = 1, cubin = 2 } kind;
  int architecture = 0;    // 80, 90, …
  std::string_view data;   // points into the container
};

// The entries of the container that starts `bytes` (or of several one behind another). Throws Error when it is none, or when it
// is compressed: nvcc must be told --no-compress.
std::vector<FatbinaryEntry> read_fatbinary(std::string_view bytes);
// The length that the container at `start` says it has.
std::size_t fatbinary_bytes(const void* start);

}  // namespace refrain::emulator::ptx
