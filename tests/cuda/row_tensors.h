// Tensors for tests of the row kernels: at aligned and misaligned starts on the device, with sentinels around them.
#pragma once

#include <refrain/kernels/kernel.h>
#include <refrain/tests/cuda/parity.h>
#include <refrain/tests/support/half.h>

namespace refrain {

// Elements before a tensor: 64 keep every dtype's packs aligned, 33 none's.
inline constexpr std::int64_t kAligned = 64, kMisaligned = 33;

// Where a kernel's tensors lie; remembers their surroundings.
class DeviceTensors {
 public:
  explicit DeviceTensors(std::int64_t margin) : margin_(margin) {}

  // Undefined stays undefined.
  Tensor put(const Tensor& values) {
    if (!values.defined()) return {};
    const Tensor t = output(values.shape(), values.dtype());
    copy_values(t, on_cuda(values));
    return t;
  }
  // Holds sentinels.
  Tensor output(const Shape& shape, DType dtype) {
    const std::int64_t numel = numel_of(shape);
    all_.push_back(full({numel + 2 * margin_}, kSentinel, dtype, cuda_device()));
    return Tensor(all_.back().storage(), all_.back().device(), dtype, shape, contiguous_strides(shape), margin_);
  }
  bool are_intact() const {
    for (const Tensor& t : all_) {
      const std::vector<double> values = t.to_vector<double>();
      const auto is_sentinel = [](double v) { return v == kSentinel; };
      if (!std::all_of(values.begin(), values.begin() + margin_, is_sentinel)) return false;
      if (!std::all_of(values.end() - margin_, values.end(), is_sentinel)) return false;
    }
    return true;
  }

 private:
  static constexpr double kSentinel = 96;  // exact in every dtype
  std::int64_t margin_;
  std::vector<Tensor> all_;
};

inline constexpr DType kFloating[] = {DType::f64, DType::f32, DType::f16, DType::bf16};

// Integers of -most … most, so that sums of products are exact.
inline Tensor small_integers(const Shape& shape, DType dtype, std::uint64_t seed, int most) {
  std::vector<double> values = random_values(numel_of(shape), seed, -most - 0.5, most + 0.5);
  for (double& v : values) v = std::clamp(std::nearbyint(v), double(-most), double(most)) + 0.0;
  return tensor_of(values, shape, dtype);
}

// n roundings of the accumulator type in a row (tests/support/half_bounds.h), doubled for f64, whose reference is f64 as well.
inline double roundings_of(DType dtype, double n) {
  const double u = dtype == DType::f64 ? 0x1p-52 : 0x1p-24;
  return n * u / (1 - n * u);
}

// What a value known to `error` may differ by once it is stored as `dtype`.
inline double stored(double value, double error, DType dtype) {
  const double u = roundoff_of(dtype);
  return u * std::abs(value) + (1 + u) * error + underflow_of(dtype);
}

}  // namespace refrain
