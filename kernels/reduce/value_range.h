// Smallest and largest finite value of a tensor, and how many are not finite: for diagnosis.
#pragma once

#include <refrain/kernels/kernel.h>

namespace refrain {

struct ValueRange {
  static constexpr std::string_view name = "value_range";
  In x;     // contiguous, floating
  Out out;  // f64 [3]: least and greatest finite value (+inf and -inf where there is none), count of infinities and NaNs
};
void validate(const ValueRange&);
Cost cost(const ValueRange&);
void run(Cpu, const ValueRange&);
void run(Cuda, const ValueRange&);

}  // namespace refrain
