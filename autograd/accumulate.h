// Sums of gradient contributions, in the order they arrive. Internal.
#pragma once

#include <refrain/core/tensor.h>

namespace refrain {

// total += grad, in place when nobody else sees total's bytes; the first contribution is taken over as it is.
void accumulate(Tensor& total, Tensor grad);

// The same for a leaf: its gradient owns contiguous bytes of the leaf's size, of kind `gradient`.
void accumulate_leaf(Tensor& total, Tensor grad);

}  // namespace refrain
