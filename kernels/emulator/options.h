// How the emulator runs kernels. Read once from the environment; tests may change it between launches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace refrain::emulator {

enum class Order { forward, reverse, random };

struct Options {
  // REFRAIN_EMULATOR_ORDER=forward|reverse|random: which thread of a block goes first whenever several may go; the order of
  // blocks follows it.
  Order order = Order::forward;
  std::uint64_t seed = 1;  // REFRAIN_EMULATOR_SEED, of the random order
  int num_threads = 0;     // REFRAIN_EMULATOR_THREADS: of the host, a block each; 0 is one a core
  // REFRAIN_EMULATOR_DEFERRED=1: launches and asynchronous copies run when something waits for them, as late as is allowed.
  bool is_deferred = false;
  // REFRAIN_EMULATOR_STRICT=1: the host cannot read or write device memory.
  bool is_strict = false;
  int timeout_seconds = 120;  // REFRAIN_EMULATOR_TIMEOUT: a launch that takes longer is taken for a hang; 0 never
  std::string report;         // REFRAIN_EMULATOR_REPORT: file that gets each kernel's launches and blocks at exit
  std::string hidden_libraries;  // REFRAIN_EMULATOR_HIDE=libcudnn,libcublasLt: libraries that are not found when first asked for
  std::size_t max_shared_bytes = 227 << 10;                // a block's, static and dynamic (sm_90)
  std::size_t device_bytes = std::size_t(8) << 30;         // REFRAIN_EMULATOR_MEMORY, in MiB
};
Options& options();

}  // namespace refrain::emulator
