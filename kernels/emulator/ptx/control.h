// What the block and the parser know of control instructions.
#pragma once

#include <refrain/kernels/emulator/ptx/module.h>

namespace refrain::emulator::ptx {

// Instruction::mode of a barrier of the block: what bar.red makes of the threads' predicates.
inline constexpr std::uint8_t kPlainBarrier = 0, kCountBarrier = 1, kAndBarrier = 2, kOrBarrier = 3;
bool is_block_barrier(const Instruction& i);
Handler warp_barrier();  // bar.warp.sync, with the mask in `a`

// Branches hold the numbers of labels until all are known.
void resolve_labels(Function& function, const std::vector<std::int64_t>& positions);

}  // namespace refrain::emulator::ptx
