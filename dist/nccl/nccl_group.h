// The process group of several CUDA ranks.
#pragma once

#include <refrain/dist/join_group.h>

namespace refrain::detail {

// Throws as join_group() does.
std::unique_ptr<ProcessGroup> nccl_group(const Place& place, const Device& device, const GroupOptions& options);

}  // namespace refrain::detail
