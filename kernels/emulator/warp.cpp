#include <refrain/kernels/emulator/block.h>
#include <refrain/kernels/emulator/warp.h>

namespace refrain::emulator {

namespace {

void ballot_operation(void** arguments, unsigned mask) {
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) != 0 && static_cast<VoteArgument*>(arguments[lane])->value != 0) result |= 1u << lane;
  for (unsigned lane = 0; lane < 32; ++lane)
    if ((mask >> lane & 1) != 0) static_cast<VoteArgument*>(arguments[lane])->result = result;
}

}  // namespace

void warp_operation(unsigned mask, WarpOperation operation, void* argument, Site site, const char* what) {
  Block::current()->warp_operation(mask, operation, argument, site, what);
}

void block_barrier(Site site) { Block::current()->barrier(site); }

void warp_barrier(unsigned mask, Site site) { Block::current()->warp_operation(mask, nullptr, nullptr, site, "__syncwarp"); }

unsigned ballot(unsigned mask, bool predicate, Site site) {
  VoteArgument argument{predicate, 0};
  warp_operation(mask, &ballot_operation, &argument, site, "__ballot_sync");
  return argument.result;
}

unsigned active_mask() {
  Block& block = *Block::current();
  const dim3& extent = block.place().extent;
  const unsigned first = current_thread->warp * 32, num_threads = extent.x * extent.y * extent.z;
  unsigned mask = 0;
  for (unsigned lane = 0; lane < 32 && first + lane < num_threads; ++lane)
    if (block.thread(first + lane).state != DeviceThread::State::done) mask |= 1u << lane;
  return mask;
}

}  // namespace refrain::emulator
