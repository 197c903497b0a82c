// Lanes that must all be at an instruction before it can be executed.
#pragma once

#include <refrain/kernels/emulator/ptx/warp.h>

namespace refrain::emulator::ptx {

// Calls f(members) for each set of lanes whose masks (in `mask_column`) name one another; sets of which a living lane is still
// elsewhere wait here. Lanes that have left the kernel are not waited for.
template <class F>
void gather_lanes(Warp& w, const Instruction& i, std::int32_t mask_column, F&& f) {
  const std::uint32_t* masks = w.column<std::uint32_t>(mask_column);
  const std::uint32_t living = w.living(), active = w.active;
  std::uint32_t missing = 0;
  for (std::uint32_t rest = active; rest != 0;) {
    const int lane = std::countr_zero(rest);
    const std::uint32_t mask = masks[lane];
    if (!(mask >> lane & 1)) w.fail(i, lane, "the lane is not in its mask");
    const std::uint32_t here = mask & active;
    for_lanes(here, [&](int l) {
      if (masks[l] != mask) w.fail(i, l, "lanes name different masks");
    });
    if ((mask & living) != here) missing |= here;
    else f(here);
    rest &= ~here;
  }
  if (missing != 0) w.park(Group::waiting, w.pc - 1, missing);
}

}  // namespace refrain::emulator::ptx
