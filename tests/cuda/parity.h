// Moving tensors between devices in tests of the CUDA backend, and outputs that tell what was not written.
#pragma once

#include <refrain/core/tensor.h>
#include <refrain/tests/support/catch.h>
#include <refrain/tests/support/values.h>

namespace refrain {

// The CUDA device tests run on: emulated, or the real one.
Device cuda_device();

// Copies; an undefined tensor stays undefined. The copy is contiguous.
Tensor on_cuda(const Tensor& t);
Tensor on_cpu(const Tensor& t);

// Every byte 0xFF: NaN in each floating dtype, -1 in each integer one.
Tensor poisoned(const Shape& shape, DType dtype, const Device& device);

}  // namespace refrain
