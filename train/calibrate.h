// What this machine was just measured to do: the two rates that turn a kernel's Cost into a time.
#pragma once

#include <refrain/core/dtype.h>

#include <cstdint>

namespace refrain {

struct MachineRates {
  double flops_per_second = 0;  // of a matrix product
  double bytes_per_second = 0;  // of a large copy, read and written
};

// Measures for about half a second on the calling thread's pool, in memory of its own. The product has operands of
// `dtype` and the shape of a linear layer: [rows, width] times [width, 4 width], each size capped.
MachineRates measure_rates(DType dtype, std::int64_t rows, std::int64_t width);

}  // namespace refrain
