// Files on the disk that have device code in them: PTX texts, cubins, and objects with fat binaries.
#pragma once

#include <refrain/kernels/emulator/ptx/fatbinary.h>

#include <string>
#include <vector>

namespace refrain::emulator::ptx {

std::string read_file(const std::string& path);

struct Section {
  std::string_view name, data;
  std::uint32_t type = 0, info = 0, link = 0;
};
// Of a 64-bit ELF file.
std::vector<Section> elf_sections(std::string_view file);

// All PTX of a file: itself, or what an object's fat binaries have.
std::vector<std::string> ptx_texts(const std::string& path);
// The entries of the fat binaries in an object; they point into `file`.
std::vector<FatbinaryEntry> object_entries(std::string_view file);

}  // namespace refrain::emulator::ptx
