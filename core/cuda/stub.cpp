// A build without CUDA: every question for a device is answered with the reason why there is none.
#include <refrain/core/check.h>
#include <refrain/core/cuda/backend.h>

namespace refrain {

namespace {

[[noreturn]] void no_cuda() { fail<InternalError>("internal error: a CUDA device was used in a build without it"); }

}  // namespace

CudaMemory cuda_memory(int) { no_cuda(); }
std::string cuda_name(int) { no_cuda(); }
std::int64_t cuda_pinned_bytes() { return 0; }

CudaGraphScope::CudaGraphScope(const Device& device) : device_(device), is_on_(false) {}
CudaGraphScope::~CudaGraphScope() = default;
void CudaGraphScope::finish() { is_on_ = false; }
CudaGraphCounts cuda_graph_counts(const Device&) { return {}; }

namespace detail {

std::string cuda_problem() { return "this build has no CUDA (it was configured without nvcc)"; }

std::unique_ptr<AddressRange> reserve_cuda_range(int index) { fail<DeviceUnavailable>("no CUDA device ", index, ": ", cuda_problem()); }

std::unique_ptr<Upload> new_upload(const Device&, std::int64_t) { no_cuda(); }

}  // namespace detail

}  // namespace refrain
