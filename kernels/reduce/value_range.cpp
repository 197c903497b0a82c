#include <refrain/kernels/reduce/value_range.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace refrain {

void validate(const ValueRange& k) {
  check_floating(k.name, "x", k.x);
  check_contiguous(k.name, "x", k.x);
  check_shape(k.name, "out", k.out, {3});
  check_dtype(k.name, "out", k.out, DType::f64);
}

Cost cost(const ValueRange& k) { return {3 * double(k.x.numel()), k.x.bytes() + k.out.bytes()}; }

void run(Cpu, const ValueRange& k) {
  if (!k.out.has_bytes() || (k.x.numel() > 0 && !k.x.has_bytes())) return;
  double least = std::numeric_limits<double>::infinity(), greatest = -least, count = 0;
  dispatch_floating(k.x.dtype(), k.name, [&](auto zero) {
    using S = decltype(zero);
    const S* x = k.x.data<S>();
    for (std::int64_t i = 0; i < k.x.numel(); ++i) {
      const double value = double(accumulator_t<S>(x[i]));
      if (std::isfinite(value)) {
        least = std::min(least, value);
        greatest = std::max(greatest, value);
      } else {
        ++count;
      }
    }
  });
  double* out = k.out.data<double>();
  out[0] = least, out[1] = greatest, out[2] = count;
}

}  // namespace refrain
