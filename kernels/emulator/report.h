// Which kernels ran, how often and with how many blocks.
#pragma once

#include <refrain/kernels/emulator/launch.h>

#include <cstdint>

namespace refrain::emulator {

void count_launch(const Kernel& kernel, std::int64_t num_blocks);

}  // namespace refrain::emulator
