#include <refrain/train/calibrate.h>

#include <refrain/core/device.h>
#include <refrain/core/parallel.h>
#include <refrain/kernels/matmul/matmul.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

namespace refrain {

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Seconds of the fastest call within `budget` seconds; at least two calls, as the first meets fresh pages and cold code.
template <class F>
double least_seconds(double budget, F&& f) {
  f();
  double least = std::numeric_limits<double>::max();
  const double end = now() + budget;
  do {
    const double begin = now();
    f();
    least = std::min(least, now() - begin);
  } while (now() < end);
  return std::max(least, 1e-9);
}

}  // namespace

MachineRates measure_rates(DType dtype, std::int64_t rows, std::int64_t width) {
  const Device device = Device::new_cpu();
  const std::int64_t m = std::clamp<std::int64_t>(rows, 1, 512), k = std::clamp<std::int64_t>(width, 16, 1024), n = 4 * k;
  const CostMeter meter = cost_meter();  // a measurement is no work of the caller's
  MachineRates rates;
  {
    const Tensor x = full({m, k}, 0.5, dtype, device), weight = full({n, k}, 0.25, dtype, device), out = full({m, n}, 0, dtype, device);
    const double seconds = least_seconds(0.25, [&] { launch(LinearForward{.x = x, .weight = weight, .bias = {}, .out = out, .pre_activation = {}}); });
    rates.flops_per_second = 2.0 * double(m) * double(n) * double(k) / seconds;
  }
  const std::int64_t bytes = std::int64_t{1} << 25;
  const Tensor from = full({bytes}, 1, DType::u8, device), to = full({bytes}, 0, DType::u8, device);
  const double seconds = least_seconds(0.15, [&] {
    parallel_for(bytes, std::int64_t{1} << 20, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to.address() + begin, from.address() + begin, std::size_t(end - begin));
    });
  });
  rates.bytes_per_second = 2.0 * double(bytes) / seconds;
  cost_meter() = meter;
  return rates;
}

}  // namespace refrain
