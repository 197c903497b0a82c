#include <refrain/dist/gloo/gloo_group.h>
#include <refrain/dist/join_group.h>
#include <refrain/dist/nccl/nccl_group.h>

namespace refrain {

std::unique_ptr<ProcessGroup> join_group(const Place& place, const Device& device, const GroupOptions& options) {
  check<RendezvousError>(place.rank >= 0 && place.rank < place.world_size, "there is no rank ", place.rank, " in a world of ",
                         place.world_size);
  if (place.world_size == 1) return single_group(device);
  if (device.kind() == DeviceKind::cuda) return detail::nccl_group(place, device, options);
  check(device.kind() == DeviceKind::cpu, "join_group: expected a CPU or CUDA device, got ", device);
#ifdef REFRAIN_HAS_GLOO
  return detail::gloo_group(place, device, options);
#else
  (void)options;
  fail<RendezvousError>("more than one rank on CPUs needs Gloo, which this build lacks: install Debian's libgloo-dev and build again");
#endif
}

}  // namespace refrain
