#include <refrain/kernels/emulator/ptx/module.h>
#include <refrain/kernels/emulator/ptx/object_file.h>

#include <cstring>
#include <elf.h>
#include <fstream>
#include <sstream>

namespace refrain::emulator::ptx {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error("cannot read " + path);
  std::stringstream all;
  all << file.rdbuf();
  return std::move(all).str();
}

std::vector<Section> elf_sections(std::string_view file) {
  const auto part = [&](std::uint64_t offset, std::uint64_t bytes) {
    if (offset > file.size() || bytes > file.size() - offset) throw Error("ELF: cut short");
    return file.substr(offset, bytes);
  };
  Elf64_Ehdr head;
  std::memcpy(&head, part(0, sizeof head).data(), sizeof head);
  if (std::memcmp(head.e_ident, ELFMAG, SELFMAG) != 0 || head.e_ident[EI_CLASS] != ELFCLASS64)
    throw Error("not a 64-bit ELF file");
  std::vector<Elf64_Shdr> heads(head.e_shnum);
  for (std::size_t k = 0; k < heads.size(); ++k)
    std::memcpy(&heads[k], part(head.e_shoff + k * head.e_shentsize, sizeof(Elf64_Shdr)).data(), sizeof(Elf64_Shdr));
  std::vector<Section> sections;
  const Elf64_Shdr& names = heads.at(head.e_shstrndx);
  for (const Elf64_Shdr& each : heads) {
    const std::string_view name = part(names.sh_offset + each.sh_name, names.sh_size - each.sh_name);
    Section section{name.substr(0, name.find('\0')), {}, each.sh_type, each.sh_info, each.sh_link};
    // A section without bytes in the file has a size only.
    section.data = each.sh_type == SHT_NOBITS ? std::string_view(nullptr, each.sh_size) : part(each.sh_offset, each.sh_size);
    sections.push_back(section);
  }
  return sections;
}

std::vector<FatbinaryEntry> object_entries(std::string_view file) {
  std::vector<FatbinaryEntry> result;
  for (const Section& section : elf_sections(file))
    if (section.name == ".nv_fatbin")
      for (const FatbinaryEntry& entry : read_fatbinary(section.data)) result.push_back(entry);
  return result;
}

std::vector<std::string> ptx_texts(const std::string& path) {
  const std::string file = read_file(path);
  if (!file.starts_with("\177ELF")) return {file};
  std::vector<std::string> texts;
  for (const FatbinaryEntry& entry : object_entries(file))
    if (entry.kind == FatbinaryEntry::ptx) texts.emplace_back(entry.data);
  return texts;
}

}  // namespace refrain::emulator::ptx
