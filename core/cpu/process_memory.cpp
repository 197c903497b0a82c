#include <refrain/core/cpu/process_memory.h>

#include <fstream>
#include <string>

namespace refrain {

ProcessMemory process_memory() {
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmRSS:" && word != "VmHWM:") continue;
    std::int64_t kib = 0;
    status >> kib;
    (word == "VmRSS:" ? memory.resident : memory.peak) = kib * 1024;
  }
  return memory;
}

}  // namespace refrain
