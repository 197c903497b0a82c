// A build without cuDNN's headers.
#include <refrain/kernels/common/cuda/library.h>
#include <refrain/kernels/convolution/cuda/cudnn.h>

namespace refrain::cuda {

namespace {

bool refuse(std::string_view name, GemmEngine engine) {
  if (engine == GemmEngine::cudnn) cudnn_library().require(name);
  return false;
}

}  // namespace

bool run_cudnn(const Cuda&, const Conv2dForward& k) { return refuse(k.name, k.engine); }
bool run_cudnn(const Cuda&, const Conv2dBackwardInput& k) { return refuse(k.name, k.engine); }
bool run_cudnn(const Cuda&, const Conv2dBackwardWeight& k) { return refuse(k.name, k.engine); }

}  // namespace refrain::cuda
