#include <refrain/kernels/emulator/options.h>
#include <refrain/kernels/emulator/report.h>

#include <cstdlib>
#include <cstdio>
#include <dlfcn.h>
#include <fstream>
#include <map>
#include <mutex>
#include <string>

namespace refrain::emulator {

namespace {

struct Count {
  std::string name;
  std::int64_t launches = 0, blocks = 0;
};

struct Counts {
  std::mutex mutex;
  std::map<std::string, Count> kernels;  // by symbol
};

Counts& counts() {
  static Counts* all = new Counts;  // never destroyed: written at exit
  return *all;
}

// One line a kernel: launches, blocks, the name messages have, the symbol of its function. Appended, so that the programs and
// runs of one check add up in one file.
void write_report() {
  Counts& all = counts();
  const std::lock_guard lock(all.mutex);
  std::ofstream file(options().report, std::ios::app);
  for (const auto& [symbol, count] : all.kernels)
    file << count.launches << '\t' << count.blocks << '\t' << count.name << '\t' << symbol << '\n';
  if (!file.flush()) std::fprintf(stderr, "emulator: cannot write %s\n", options().report.c_str());
}

// The program's symbols are exported for this.
std::string symbol_of(const void* function) {
  Dl_info found{};
  if (dladdr(function, &found) != 0 && found.dli_sname != nullptr && found.dli_saddr == function) return found.dli_sname;
  return "?";
}

}  // namespace

void count_launch(const Kernel& kernel, std::int64_t num_blocks) {
  if (options().report.empty()) return;
  static const bool is_written_at_exit = std::atexit(write_report) == 0;
  (void)is_written_at_exit;
  static std::map<const void*, std::string>* symbols = new std::map<const void*, std::string>;
  Counts& all = counts();
  const std::lock_guard lock(all.mutex);
  std::string symbol = kernel.symbol;
  if (kernel.function != nullptr) {
    std::string& known = (*symbols)[kernel.function];
    if (known.empty()) known = symbol_of(kernel.function);
    symbol = known;
  }
  Count& count = all.kernels[symbol];
  count.name = kernel.name;
  ++count.launches;
  count.blocks += num_blocks;
}

}  // namespace refrain::emulator
