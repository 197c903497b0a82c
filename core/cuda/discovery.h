// Which CUDA devices there are, and why one cannot be had.
#pragma once

#include <string>

namespace refrain::cuda {

// Why the device of this number cannot be used; empty where it can.
std::string problem_of(int index);

}  // namespace refrain::cuda
