// A weight in the dtype a product runs in. For .cpp files of ops.
#pragma once

#include <refrain/autograd/op.h>
#include <refrain/kernels/convert/convert.h>

#include <string_view>

namespace refrain {

// Whether the running op's forward has to fill `out`: false in a replay that does not read it or has kept it. Asked after
// op_output(), before memory is taken for the op's own use.
inline bool must_compute(const Tensor& out) { return out.storage() != nullptr && !thread_context().skip_kernels; }

// The weight, contiguous, in `dtype`: the weight itself, or a 16-bit copy of an f32 weight that the caller drops when its
// product is done. Throws InvalidArgument for other pairs.
inline Tensor weight_as(std::string_view op, const Tensor& weight, DType dtype) {
  if (weight.dtype() == dtype) return contiguous_values(weight);
  check(weight.dtype() == DType::f32 && is_16_bit(dtype), op, ": weight must be ", dtype, is_16_bit(dtype) ? " or f32" : "", ", got ",
        weight.dtype());
  const KindScope kind(MemoryKind::workspace);
  const Tensor copy = empty(weight.shape(), dtype, weight.device());
  launch(Convert{.x = weight, .out = copy});
  return copy;
}

}  // namespace refrain
