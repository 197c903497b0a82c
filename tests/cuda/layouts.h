// Tensors of a CUDA device in hostile memory layouts, and outputs with sentinels around them.
#pragma once

#include <refrain/core/view.h>
#include <refrain/tests/cuda/parity.h>
#include <refrain/tests/support/half.h>

#include <string>
#include <utility>
#include <vector>

namespace refrain {

inline constexpr DType kFloats[] = {DType::f64, DType::f32, DType::f16, DType::bf16};
inline constexpr DType kAllDTypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16,
                                       DType::i64, DType::i32, DType::u8,  DType::boolean};

// A contiguous tensor that begins `shift` elements after a multiple of 64, its bytes poisoned, between sentinels.
class CudaGuarded {
 public:
  CudaGuarded(const Shape& shape, DType dtype, std::int64_t shift = 0)
      : first_(kMargin + shift), numel_(numel_of(shape)), all_(full({numel_ + 2 * kMargin + shift}, 1, dtype, cuda_device())) {
    tensor = Tensor(all_.storage(), all_.device(), dtype, shape, contiguous_strides(shape), first_);
    if (numel_ > 0) cuda_device().state().range->fill({tensor.bytes()}, 1, tensor.address(), {1}, 0xff);
  }
  CudaGuarded(const Tensor& values, std::int64_t shift = 0) : CudaGuarded(values.shape(), values.dtype(), shift) {
    if (numel_ > 0) copy_values(tensor, on_cuda(values));
  }
  bool is_intact() const {
    const std::vector<double> values = all_.to_vector<double>();
    const auto is_one = [](double v) { return v == 1; };
    return std::all_of(values.begin(), values.begin() + first_, is_one) &&
           std::all_of(values.begin() + first_ + numel_, values.end(), is_one);
  }
  Tensor tensor;

 private:
  static constexpr std::int64_t kMargin = 64;
  std::int64_t first_, numel_;
  Tensor all_;
};

// The values on the device: aligned, misaligned by one element, with gaps, rows apart, in reverse order of dims. The last three
// need a dim.
inline constexpr const char* kLayoutNames[] = {"contiguous", "misaligned", "gaps", "rows apart", "reversed"};
inline int num_layouts(const Tensor& values) { return values.num_dims() == 0 ? 2 : 5; }
inline Tensor in_layout(const Tensor& values, int layout) {
  const Tensor t = on_cuda(values);
  if (layout == 0) return t;
  const auto placed = [&](const Shape& shape, auto&& view_of) {
    const Tensor view = view_of(full(shape, 1, t.dtype(), cuda_device()));
    copy_values(view, t);
    return view;
  };
  const Shape shape = t.shape();
  if (layout == 1)
    return placed({t.numel() + 1},
                  [&](const Tensor& all) { return view::reshape(view::slice(all, 0, 1, t.numel() + 1), shape); });
  const std::int64_t last = shape.back();
  Shape larger = shape, reversed;
  larger[shape.size() - 1] = layout == 2 ? last * 2 + 1 : last / 16 * 16 + 16;
  if (layout == 2) return placed(larger, [&](const Tensor& all) { return view::slice(all, -1, 1, last * 2 + 1, 2); });
  if (layout == 3) return placed(larger, [&](const Tensor& all) { return view::slice(all, -1, 0, last); });
  Dims order;
  for (int i = shape.size() - 1; i >= 0; --i) order.push_back(i), reversed.push_back(shape[i]);
  return placed(reversed, [&](const Tensor& all) { return view::permute(all, order); });
}
inline std::vector<std::pair<std::string, Tensor>> cuda_layouts(const Tensor& values) {
  std::vector<std::pair<std::string, Tensor>> result;
  for (int i = 0; i < num_layouts(values); ++i) result.emplace_back(kLayoutNames[i], in_layout(values, i));
  return result;
}

// Elements that differ, subnormal numbers of f32 counting as 0: the CPU's kernels flush them. NaN equals NaN.
inline std::int64_t num_different_when_flushed(const Tensor& got, const Tensor& expected) {
  REQUIRE(got.shape() == expected.shape());
  REQUIRE(got.dtype() == expected.dtype());
  const std::vector<double> x = got.to_vector<double>(), y = expected.to_vector<double>();
  const double least = got.dtype() == DType::f16 ? 0 : underflow_of(got.dtype());
  std::int64_t count = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double a = std::abs(x[i]) < least ? std::copysign(0.0, x[i]) : x[i],
                 b = std::abs(y[i]) < least ? std::copysign(0.0, y[i]) : y[i];
    const bool is_same = std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b);
    if (!is_same && count++ == 0) UNSCOPED_INFO("element " << i << ": " << x[i] << " differs from " << y[i]);
  }
  return count;
}

}  // namespace refrain
