// Convolutions by cuDNN, for the CUDA halves of the kernels. Needs no CUDA header.
#pragma once

#include <refrain/kernels/convolution/convolution.h>

namespace refrain::cuda {

// Whether the convolution was given to cuDNN, on the device's stream. False, and nothing done, where the engine is another, the
// library is missing, or it does not offer these very semantics; with GemmEngine::cudnn the latter two throw InvalidArgument.
// What is not offered: operands that do not start at multiples of 16 bytes, empty ones and such of 2^31 elements; a bias or a
// weight's gradient of another dtype than the operands'; what has no deterministic algorithm within the workspace.
bool run_cudnn(const Cuda& device, const Conv2dForward& k);
bool run_cudnn(const Cuda& device, const Conv2dBackwardInput& k);
bool run_cudnn(const Cuda& device, const Conv2dBackwardWeight& k);

}  // namespace refrain::cuda
