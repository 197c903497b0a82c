// The process group of CPU ranks: Gloo's connections, our order of additions, and a worker that runs calls in order.
#pragma once

#include <refrain/dist/join_group.h>

#include <memory>

namespace refrain::detail {

std::unique_ptr<ProcessGroup> gloo_group(const Place& place, const Device& device, const GroupOptions& options);

}  // namespace refrain::detail
