// A build without CUDA has no NCCL.
#include <refrain/core/check.h>
#include <refrain/dist/nccl/link.h>

namespace refrain::detail {

std::string nccl_problem() { return "this build has no CUDA (it was configured without nvcc)"; }
NcclId new_nccl_id() { fail<InternalError>("internal error: NCCL was used in a build without CUDA"); }
std::unique_ptr<NcclLink> open_nccl_link(const Device&, const NcclId&, int, int, std::int64_t, const NcclLink::Patience&) {
  fail<InternalError>("internal error: NCCL was used in a build without CUDA");
}

}  // namespace refrain::detail
