// A build without CUDA has no libraries of NVIDIA's to speak of.
#include <refrain/kernels/common/cuda/library.h>

namespace refrain::cuda {

std::vector<LibraryState> library_states() { return {}; }

}  // namespace refrain::cuda
