// A build without CUDA: every question for a device is answered with the reason why there is none.
#include <refrain/core/check.h>
#include <refrain/core/device.h>

namespace refrain::detail {

std::string cuda_problem() { return "this build has no CUDA (it was configured without nvcc)"; }

std::unique_ptr<AddressRange> reserve_cuda_range(int index) { fail<DeviceUnavailable>("no CUDA device ", index, ": ", cuda_problem()); }

}  // namespace refrain::detail
