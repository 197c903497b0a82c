// Where an instruction's address points on the host.
#pragma once

#include <refrain/kernels/emulator/ptx/block_run.h>
#include <refrain/kernels/emulator/ptx/decode.h>

namespace refrain::emulator::ptx {

// The address space among the qualifiers; generic without one.
Space take_space(Decoder& d);

// Of a lane's access to `bytes`; throws when it is misaligned, null, or outside the block's shared memory.
template <Space kSpace>
inline std::byte* host_address(const Warp& w, const Instruction& i, int lane, std::size_t bytes) {
  const std::uint64_t address = w.address(i, lane);
  if constexpr (kSpace == Space::shared) {
    return w.block->shared_at(w, i, lane, address, bytes);
  } else {
    if (address % bytes != 0) w.fail(i, lane, "misaligned address");
    if (address < 4096) w.fail(i, lane, "null address");
    return reinterpret_cast<std::byte*>(address);
  }
}

}  // namespace refrain::emulator::ptx
