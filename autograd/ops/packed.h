// Contiguous values for kernels that ask for them.
#pragma once

#include <refrain/kernels/convert/convert.h>

namespace refrain {

// t itself when contiguous, else a contiguous copy made by a kernel (parallel, and booked). Not recorded on any tape.
inline Tensor packed(const Tensor& t) {
  if (t.is_contiguous()) return t;
  const Tensor copy = empty(t.shape(), t.dtype(), t.device());
  launch(Convert{.x = t, .out = copy});
  return copy;
}

}  // namespace refrain
