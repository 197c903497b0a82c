// Operands, outputs and bounds for tests of products on CUDA.
#pragma once

#include <refrain/core/view.h>
#include <refrain/kernels/matmul/matmul.h>
#include <refrain/tests/cuda/parity.h>
#include <refrain/tests/support/half_bounds.h>

#include <string>
#include <vector>

namespace refrain::testing {

inline const std::vector<DType> kFloatingDtypes = {DType::f64, DType::f32, DType::f16, DType::bf16};

// Whole numbers from -3 to 3: sums of their products are exact, so that every order of them has the same bits.
inline Tensor whole_numbers(const Shape& shape, DType dtype, std::uint64_t seed) {
  std::vector<double> values = random_values(numel_of(shape), seed, -3.49, 3.49);
  for (double& v : values) v = std::round(v) + 0.0;
  return tensor_of(values, shape, dtype);
}

// A contiguous tensor on the CUDA device between sentinels, at a start of 64 bytes or `shift` elements behind one.
class CudaGuarded {
 public:
  CudaGuarded(const Tensor& values, std::int64_t shift) : CudaGuarded(values.shape(), values.dtype(), shift) { copy_values(tensor, on_cuda(values)); }
  CudaGuarded(const Shape& shape, DType dtype, std::int64_t shift)
      : numel_(numel_of(shape)), begin_(kMargin + shift), all_(full({numel_ + 2 * kMargin + shift}, kSentinel, dtype, cuda_device())) {
    tensor = Tensor(all_.storage(), all_.device(), dtype, shape, contiguous_strides(shape), begin_);
  }
  bool is_intact() const {
    const std::vector<double> values = on_cpu(all_).to_vector<double>();
    for (std::int64_t i = 0; i < std::int64_t(values.size()); ++i) {
      if ((i < begin_ || i >= begin_ + numel_) && values[std::size_t(i)] != kSentinel) return false;
    }
    return true;
  }
  Tensor tensor;

 private:
  static constexpr std::int64_t kMargin = 64;
  static constexpr double kSentinel = 12288;  // exact in every floating dtype
  std::int64_t numel_, begin_;
  Tensor all_;
};

// Scratch of a product's size, undefined for 0 bytes.
inline Tensor product_workspace(std::int64_t bytes) { return bytes == 0 ? Tensor() : poisoned({bytes}, DType::u8, cuda_device()); }
inline Tensor product_workspace(std::int64_t m, std::int64_t n, std::int64_t k) { return product_workspace(product_workspace_bytes(DeviceKind::cuda, m, n, k)); }

inline double rounding_unit(DType dtype) { return dtype == DType::f64 ? 0x1p-53 : dtype == DType::f32 ? 0x1p-24 : dtype == DType::f16 ? 0x1p-11 : 0x1p-8; }

// The largest share of its bound u·|y| + (1 + u)·n·v·terms + s that an element is off: u is the rounding unit of its dtype, v the sums'.
inline double share_of_bound(const Tensor& got, const Tensor& exact, const Tensor& terms, double num_roundings) {
  const double u = rounding_unit(got.dtype()), v = got.dtype() == DType::f64 ? 0x1p-53 : 0x1p-24;
  const std::vector<double> y = on_cpu(got).to_vector<double>(), e = exact.to_vector<double>(), t = terms.to_vector<double>();
  double worst = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double bound = u * std::abs(e[i]) + (1 + u) * num_roundings * v * t[i] + (got.dtype() == DType::f16 ? 0x1p-25 : 0x1p-126);
    const double off = std::abs(y[i] - e[i]);
    worst = std::isnan(off) ? HUGE_VAL : std::max(worst, off / bound);
  }
  return worst;
}

inline Tensor magnitudes(const Tensor& t) {
  std::vector<double> values = t.to_vector<double>();
  for (double& v : values) v = std::abs(v);
  return tensor_of(values, t.shape(), DType::f64);
}
inline Tensor in_f64(const Tensor& t) { return tensor_of(t.to_vector<double>(), t.shape(), DType::f64); }

}  // namespace refrain::testing
