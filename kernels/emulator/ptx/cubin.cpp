// Numbers of opcodes and attributes were found by comparing what ptxas -v, cuobjdump and nvdisasm of CUDA 13 say of small
// kernels.
#include <refrain/kernels/emulator/ptx/cubin.h>
#include <refrain/kernels/emulator/ptx/module.h>
#include <refrain/kernels/emulator/ptx/object_file.h>

#include <cstring>
#include <elf.h>

namespace refrain::emulator::ptx {

namespace {

// The low 9 bits of an instruction; the next three tell registers, constants and immediates apart. Memory operations say their
// size in bits 73 to 75.
struct Opcode {
  unsigned number;
  const char* name;
  bool has_size;
};
constexpr Opcode kOpcodes[] = {{0x181, "LDG", true}, {0x186, "STG", true}, {0x184, "LDS", true}, {0x188, "STS", true},
                               {0x183, "LDL", false}, {0x187, "STL", false}, {0x03c, "HMMA", false}, {0x03b, "LDSM", false},
                               {0x1ae, "LDGSTS", false}, {0x023, "FFMA", false}, {0x02b, "DFMA", false},
                               {0x11d, "BAR", false}, {0x1a8, "ATOMG", false}, {0x1a9, "ATOMG", false}, {0x18e, "RED", false}};

std::string name_of(std::uint64_t low, std::uint64_t high) {
  for (const Opcode& each : kOpcodes) {
    if (each.number != (low & 0x1ff)) continue;
    const unsigned size = high >> 9 & 7;
    return std::string(each.name) + (!each.has_size ? "" : size == 6 ? ".128" : size == 5 ? ".64" : size == 4 ? ".32" : ".16");
  }
  return {};
}

template <class T>
T read_at(std::string_view bytes, std::size_t offset) {
  if (offset + sizeof(T) > bytes.size()) throw Error("cubin: cut short");
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// Attributes of kernels, by symbol: registers and bytes of stack.
constexpr std::uint8_t kFrameSize = 0x11, kRegisterCount = 0x2f, kSizedValue = 4;
std::map<std::uint32_t, std::uint32_t> read_attribute(std::string_view info, std::uint8_t wanted) {
  std::map<std::uint32_t, std::uint32_t> values;
  for (std::size_t at = 0; at + 4 <= info.size();) {
    const auto format = read_at<std::uint8_t>(info, at), attribute = read_at<std::uint8_t>(info, at + 1);
    const std::size_t bytes = format == kSizedValue ? read_at<std::uint16_t>(info, at + 2) : 0;
    if (format == kSizedValue && attribute == wanted && bytes >= 8)
      values[read_at<std::uint32_t>(info, at + 4)] = read_at<std::uint32_t>(info, at + 8);
    at += 4 + bytes;
  }
  return values;
}

}  // namespace

std::vector<MachineKernel> read_cubin(std::string_view cubin) {
  const std::vector<Section> sections = elf_sections(cubin);
  std::map<std::string, std::uint32_t> symbols;  // by name, its number
  std::map<std::uint32_t, std::uint32_t> registers, frames;
  for (const Section& section : sections) {
    if (section.type == SHT_SYMTAB) {
      const std::string_view names = sections.at(section.link).data;
      for (std::size_t k = 0; (k + 1) * sizeof(Elf64_Sym) <= section.data.size(); ++k) {
        const auto symbol = read_at<Elf64_Sym>(section.data, k * sizeof(Elf64_Sym));
        const std::string_view name = names.substr(symbol.st_name);
        symbols[std::string(name.substr(0, name.find('\0')))] = std::uint32_t(k);
      }
    }
    if (section.name == ".nv.info") {
      registers = read_attribute(section.data, kRegisterCount);
      frames = read_attribute(section.data, kFrameSize);
    }
  }
  std::vector<MachineKernel> kernels;
  constexpr std::string_view kText = ".text.";
  for (const Section& section : sections) {
    if (!section.name.starts_with(kText)) continue;
    MachineKernel kernel;
    kernel.name = section.name.substr(kText.size());
    const std::uint32_t symbol = symbols[kernel.name];
    kernel.num_registers = int(registers[symbol]);
    kernel.stack_bytes = frames[symbol];
    for (const Section& other : sections)
      if (other.name == ".nv.shared." + kernel.name) kernel.shared_bytes = other.data.size();
    for (std::size_t at = 0; at + 16 <= section.data.size(); at += 16) {
      ++kernel.num_instructions;
      const std::string name = name_of(read_at<std::uint64_t>(section.data, at), read_at<std::uint64_t>(section.data, at + 8));
      if (!name.empty()) ++kernel.opcodes[name];
    }
    kernels.push_back(std::move(kernel));
  }
  return kernels;
}

}  // namespace refrain::emulator::ptx
