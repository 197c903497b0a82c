// Small kernels that tests of the emulator itself run; some are wrong on purpose.
#pragma once

#include <cstdint>
#include <vector>

namespace refrain {

// What reached `out`, one value a thread, when a kernel of that name ran on `threads` threads.
std::vector<float> reverse_through_shared(int threads, bool has_barrier);

}  // namespace refrain
