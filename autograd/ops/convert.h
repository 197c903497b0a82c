// Differentiable conversion between element types.
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

// x as another dtype, any of the eight; x itself when it has that dtype already. Narrower floating types round to
// nearest, ties to even; kernels/convert/convert.h states the other rules. Between floating types the gradient is
// converted back; to or from others there is none. Saves nothing.
Tensor convert(const Tensor& x, DType dtype);

}  // namespace refrain
