// ptx_opcodes FILE…: the instructions of every entry in PTX files, or in objects that nvcc made, and how often each stands there.
// Decodes all of them; what the interpreter does not know is printed, and the exit code is 1.
#include <refrain/kernels/emulator/ptx/fatbinary.h>
#include <refrain/kernels/emulator/ptx/module.h>
#include <refrain/kernels/emulator/ptx/object_file.h>

#include <cstdio>
#include <map>
#include <set>

using namespace refrain::emulator::ptx;

namespace {

std::string opcode_of(std::string_view text) {
  if (text.starts_with('@')) text.remove_prefix(std::min(text.find_first_of(" \t"), text.size()));
  const auto start = std::min(text.find_first_not_of(" \t\n"), text.size());
  return std::string(text.substr(start, text.find_first_of(" \t\n", start) - start));
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, long> opcodes;
  std::set<std::string> problems;
  int num_entries = 0;
  for (int k = 1; k < argc; ++k) {
    for (const std::string& text : ptx_texts(argv[k])) {
      Module module(text);
      for (const std::string& entry : module.entries()) {
        ++num_entries;
        try {
          for (const std::string& instruction : module.function(entry).texts) ++opcodes[opcode_of(instruction)];
        } catch (const Error& error) {
          problems.insert(error.what());
        }
      }
    }
  }
  for (const auto& [opcode, count] : opcodes) std::printf("%8ld %s\n", count, opcode.c_str());
  for (const std::string& problem : problems) std::printf("unknown: %s\n", problem.c_str());
  std::printf("%d entries, %zu opcodes, %zu unknown\n", num_entries, opcodes.size(), problems.size());
  return problems.empty() ? 0 : 1;
}
