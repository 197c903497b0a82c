// Sums of gradient contributions, in the order they arrive. Internal.
#pragma once

#include <refrain/autograd/value.h>
#include <refrain/core/tensor.h>

namespace refrain {

// total += grad, in place when nobody else sees total's bytes; the first contribution is taken over as it is.
void accumulate(Tensor& total, Tensor grad);

// Adds a contribution that comes from `stage` (autograd/random.h) to a leaf's gradient, which owns contiguous bytes of the
// leaf's size, of the slot's grad_kind. Returns the sum it went into.
const Tensor& accumulate_leaf(ValueSlot& slot, std::uint32_t stage, Tensor grad);

// Adds up the sums of a leaf's stages; afterwards slot.grad is the whole gradient.
void merge_stages(ValueSlot& slot);

// The whole gradient so far, with the slot left as it is: another contribution to a stage goes where it would have gone.
Tensor whole_grad(const ValueSlot& slot);

// Drops a leaf's gradient.
void drop_grad(ValueSlot& slot);

}  // namespace refrain
