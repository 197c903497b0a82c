// The machine code of one architecture, as far as the gates look at it.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace refrain::emulator::ptx {

struct MachineKernel {
  std::string name;
  int num_registers = 0;
  std::size_t shared_bytes = 0, stack_bytes = 0, num_instructions = 0;
  std::map<std::string, std::size_t> opcodes;  // those with names in cubin.cpp
};

// Every kernel of a cubin. Throws Error.
std::vector<MachineKernel> read_cubin(std::string_view cubin);

}  // namespace refrain::emulator::ptx
