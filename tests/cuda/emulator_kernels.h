// Small kernels that tests of the emulator itself run; some are wrong on purpose.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace refrain::emulator_test {

// Runs the kernel of that name with one block of `threads`, which gets 4096 floats of device memory, 0 at first, and
// `shared_bytes` of dynamic shared memory. Returns the floats.
std::vector<float> run_kernel(std::string_view name, int threads, int blocks = 1, std::size_t shared_bytes = 0);
// The same for a kernel that is expected to fail: what the emulator said, or nothing.
std::string failure_of(std::string_view name, int threads, int blocks = 1, std::size_t shared_bytes = 0);

// d[16, 8] = a[16, 16] b[16, 8] through fragments filled as the PTX ISA's tables have them.
std::vector<float> multiply(const std::vector<float>& a, const std::vector<float>& b, bool is_bf16);

// Matrices of shared memory that hold 0, 1, 2, … in row-major order, through ldmatrix: 2 count values a lane.
std::vector<float> load_matrices(int count, bool is_transposed);

// What two streams leave: a kernel on the first writes 1, a kernel on the second, ordered after it or not, copies that.
float across_streams(bool is_ordered);
// What the host finds in pinned memory that a kernel sets to 1: before it waits, and after.
std::vector<float> before_and_after_waiting();

// The first float of device memory, read by the host itself.
float follow_device_address();

}  // namespace refrain::emulator_test
