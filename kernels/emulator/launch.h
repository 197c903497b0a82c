// Launching a kernel: what cuda::launch() calls in place of the driver.
#pragma once

#include <driver_types.h>
#include <vector_types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace refrain::emulator {

struct Kernel {
  std::string_view name;           // as messages call it
  const void* function = nullptr;  // its __global__ function; null where there is none, as for PTX
  std::string symbol = {};         // where `function` is null: its name in the PTX
};

// Runs `body` once a device thread, now or when something waits for the stream. Refuses what the driver would refuse. Throws
// Error, or a later synchronisation does, for what went wrong while it ran.
cudaError_t launch(const Kernel& kernel, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream, std::function<void()> body);
inline cudaError_t launch(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream, std::function<void()> body) {
  return launch(Kernel{.name = "kernel"}, grid, block, shared_bytes, stream, std::move(body));
}

// Runs the grid at once. Throws Error.
void run_grid(const Kernel& kernel, dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body);

}  // namespace refrain::emulator
