// cubin_report FILE…: what the machine code in objects or cubins is made of, a line a kernel and architecture:
//
//   architecture, registers, static shared bytes, stack bytes, instructions, counts of opcodes (NAME=count,…), kernel
//
// separated by tabs. Registers and shared memory are what the cubin asks the driver for. A stack of 0 bytes means that nothing
// was spilled. The few opcodes with names here are told by their number, in the low 12 bits of each 128-bit instruction.
#include <refrain/kernels/emulator/ptx/cubin.h>
#include <refrain/kernels/emulator/ptx/module.h>
#include <refrain/kernels/emulator/ptx/object_file.h>

#include <cstdio>

using namespace refrain::emulator::ptx;

int main(int argc, char** argv) {
  try {
    for (int k = 1; k < argc; ++k) {
      const std::string file = read_file(argv[k]);
      for (const FatbinaryEntry& entry : object_entries(file)) {
        if (entry.kind != FatbinaryEntry::cubin) continue;
        for (const MachineKernel& kernel : read_cubin(entry.data)) {
          std::string counts;
          for (const auto& [name, count] : kernel.opcodes)
            counts += (counts.empty() ? "" : ",") + name + "=" + std::to_string(count);
          std::printf("sm_%d\t%d\t%zu\t%zu\t%zu\t%s\t%s\n", entry.architecture, kernel.num_registers, kernel.shared_bytes,
                      kernel.stack_bytes, kernel.num_instructions, counts.c_str(), kernel.name.c_str());
        }
      }
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "cubin_report: %s\n", error.what());
    return 1;
  }
}
