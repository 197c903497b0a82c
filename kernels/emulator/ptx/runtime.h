// Kernels that nvcc's host objects registered, and what became of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace refrain::emulator::ptx {

struct KernelCount {
  std::string symbol;
  std::int64_t launches = 0, blocks = 0;
  double seconds = 0;
};

// Every registered kernel, launched or not, by symbol.
std::vector<KernelCount> kernel_counts();
std::string demangled(const std::string& symbol);

}  // namespace refrain::emulator::ptx
