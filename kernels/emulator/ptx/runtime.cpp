// The fake CUDA runtime's half that nvcc's host objects call: they register their fat binaries and kernels before main, and
// launch by address. Kernels run in the interpreter, from the PTX in those same objects.
//
// REFRAIN_PTX=80|90 chooses among the PTX of several architectures (default 80). REFRAIN_PTX_COVERAGE=FILE writes each kernel's
// launches, blocks and milliseconds to FILE at exit, kernels that were never launched included.
#include <refrain/kernels/emulator/launch.h>
#include <refrain/kernels/emulator/options.h>
#include <refrain/kernels/emulator/ptx/fatbinary.h>
#include <refrain/kernels/emulator/ptx/module.h>
#include <refrain/kernels/emulator/ptx/runtime.h>
#include <refrain/kernels/emulator/queue.h>
#include <refrain/kernels/emulator/report.h>
#include <refrain/kernels/emulator/runtime.h>
#include <refrain/kernels/emulator/watchdog.h>

#include <cuda_runtime_api.h>
#include <cxxabi.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>

namespace refrain::emulator::ptx {

namespace {

// One registered fat binary; its PTX is cut into functions at the first launch.
struct Binary {
  const void* container;
  std::unique_ptr<Module> module;
};
struct RegisteredKernel {
  Binary* binary;
  std::string name;
};
struct LaunchConfiguration {
  dim3 grid, block;
  std::size_t shared_bytes;
  void* stream;
};

struct Registry {
  std::mutex mutex;
  std::vector<std::unique_ptr<Binary>> binaries;
  std::map<const void*, RegisteredKernel> kernels;  // by the address of the host's stub
  std::map<std::string, KernelCount> counts;
};

void write_coverage() {
  const char* path = std::getenv("REFRAIN_PTX_COVERAGE");
  if (path == nullptr || *path == '\0') return;
  std::ofstream file(path);
  for (const KernelCount& each : kernel_counts())
    file << each.launches << '\t' << each.blocks << '\t' << std::int64_t(each.seconds * 1e3) << '\t' << demangled(each.symbol)
         << '\n';
}

// Made by the first object that registers, before main; lives for ever.
Registry& registry() {
  static Registry* all = [] {
    std::atexit(write_coverage);
    return new Registry;
  }();
  return *all;
}

int wanted_architecture() {
  const char* text = std::getenv("REFRAIN_PTX");
  return text == nullptr || *text == '\0' ? 80 : std::atoi(text);
}

Module& module_of(Binary& binary) {
  if (binary.module) return *binary.module;
  const auto entries = read_fatbinary({static_cast<const char*>(binary.container), fatbinary_bytes(binary.container)});
  std::string_view text;
  for (const FatbinaryEntry& entry : entries)
    if (entry.kind == FatbinaryEntry::ptx && entry.architecture == wanted_architecture()) text = entry.data;
  if (text.empty()) throw Error("ptx: the program has no PTX for compute_" + std::to_string(wanted_architecture()));
  binary.module = std::make_unique<Module>(std::string(text));
  return *binary.module;
}

Dim to_dim(dim3 d) { return {d.x, d.y, d.z}; }

ptx::Order order() {
  switch (options().order) {
    case emulator::Order::reverse: return Order::reverse;
    case emulator::Order::random: return Order::random;
    default: return Order::forward;
  }
}

void run(const Function& function, const Kernel& kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
         const std::vector<std::byte>& parameters) {
  const WatchdogScope watchdog(kernel.name);
  const auto start = std::chrono::steady_clock::now();
  try {
    execute(function, to_dim(grid), to_dim(block), shared_bytes, parameters.data(), order(), options().num_threads);
  } catch (const Error& error) {
    throw emulator::Error(error.what());
  }
  const std::int64_t num_blocks = std::int64_t(grid.x) * grid.y * grid.z;
  count_launch(kernel, num_blocks);
  const std::lock_guard lock(registry().mutex);
  KernelCount& count = registry().counts[kernel.symbol];
  ++count.launches;
  count.blocks += num_blocks;
  count.seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

cudaError_t launch(const void* stub, dim3 grid, dim3 block, void** arguments, std::size_t shared_bytes, cudaStream_t stream) {
  const Function* function = nullptr;
  std::string symbol;
  try {
    const std::lock_guard lock(registry().mutex);
    const auto found = registry().kernels.find(stub);
    if (found == registry().kernels.end()) return cudaErrorInvalidDeviceFunction;
    symbol = found->second.name;
    function = &module_of(*found->second.binary).function(symbol);
  } catch (const Error& error) {
    return guarded([&] { throw emulator::Error(error.what()); });
  }
  // What the driver refuses: more threads than __launch_bounds__ promised, more shared memory than a block has.
  const std::uint64_t num_threads = std::uint64_t(block.x) * block.y * block.z;
  if (num_threads == 0 || num_threads > function->max_threads || block.z > 64) return cudaErrorInvalidConfiguration;
  if (grid.x == 0 || grid.x > 0x7fffffffu || grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535)
    return cudaErrorInvalidConfiguration;
  if (function->shared_bytes + shared_bytes > options().max_shared_bytes) return cudaErrorInvalidValue;
  std::vector<std::byte> parameters(function->parameter_bytes + 16);
  for (std::size_t k = 0; k < function->parameters.size(); ++k)
    std::memcpy(parameters.data() + function->parameters[k].offset, arguments[k], function->parameters[k].bytes);
  return guarded([&] {
    submit(stream, [function, symbol, name = demangled(symbol), grid, block, shared_bytes, values = std::move(parameters)] {
      run(*function, Kernel{.name = name, .function = nullptr, .symbol = symbol}, grid, block, shared_bytes, values);
    }, function);
  });
}

std::vector<LaunchConfiguration>& configurations() {
  static thread_local std::vector<LaunchConfiguration> all;
  return all;
}

}  // namespace

std::vector<KernelCount> kernel_counts() {
  const std::lock_guard lock(registry().mutex);
  std::vector<KernelCount> result;
  for (const auto& [symbol, count] : registry().counts) {
    result.push_back(count);
    result.back().symbol = symbol;
  }
  return result;
}

std::string demangled(const std::string& symbol) {
  int status = 0;
  char* text = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 && text != nullptr ? text : symbol;
  std::free(text);
  return result;
}

}  // namespace refrain::emulator::ptx

using namespace refrain::emulator;

extern "C" {

// What nvcc puts before a container: magic, version, its address.
struct FatbinaryWrapper {
  int magic, version;
  const void* container;
  void* unused;
};

void** __cudaRegisterFatBinary(void* wrapper) {
  auto binary = std::make_unique<ptx::Binary>();
  binary->container = static_cast<const FatbinaryWrapper*>(wrapper)->container;
  const std::lock_guard lock(ptx::registry().mutex);
  ptx::registry().binaries.push_back(std::move(binary));
  return reinterpret_cast<void**>(ptx::registry().binaries.back().get());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }

void __cudaRegisterFunction(void** binary, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
  const std::lock_guard lock(ptx::registry().mutex);
  ptx::registry().kernels[stub] = {reinterpret_cast<ptx::Binary*>(binary), name};
  ptx::registry().counts[name];
}
// Variables live in the interpreter's own memory; the host has no way to them.
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream) {
  ptx::configurations().push_back({grid, block, shared_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  const auto last = ptx::configurations().back();
  ptx::configurations().pop_back();
  *grid = last.grid, *block = last.block, *shared_bytes = last.shared_bytes;
  *static_cast<void**>(stream) = last.stream;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                             cudaStream_t stream) {
  return note_error(ptx::launch(stub, grid, block, arguments, shared_bytes, stream));
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared_bytes,
                               cudaStream_t stream) {
  return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid, block, arguments, shared_bytes, stream);
}
}
