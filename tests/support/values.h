// Making and comparing tensors in tests.
#pragma once

#include <refrain/core/parallel.h>
#include <refrain/core/random.h>
#include <refrain/core/tensor.h>
#include <refrain/tests/support/catch.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace refrain {

// Uniform values in [low, high), a pure function of the seed.
inline std::vector<double> random_values(std::int64_t count, std::uint64_t seed, double low = -1, double high = 1) {
  const RandomKey key{.seed = seed, .purpose = RandomPurpose::user};
  std::vector<double> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[std::size_t(i)] = low + (high - low) * double(key.uniform(std::uint64_t(i)));
  return values;
}

// The values rounded to a floating dtype.
inline Tensor tensor_of(const std::vector<double>& values, const Shape& shape, DType dtype) {
  return dispatch_floating(dtype, "tensor_of", [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> rounded;
    for (double v : values) rounded.push_back(T(accumulator_t<T>(v)));
    return from_values(rounded, shape);
  });
}

inline Tensor random_tensor(const Shape& shape, DType dtype, std::uint64_t seed, double low = -1, double high = 1) {
  return tensor_of(random_values(numel_of(shape), seed, low, high), shape, dtype);
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  const Tensor x = contiguous_values(a), y = contiguous_values(b);
  return x.shape() == y.shape() && x.dtype() == y.dtype() &&
         (x.numel() == 0 || std::memcmp(x.raw_data(), y.raw_data(), std::size_t(x.bytes())) == 0);
}

// Largest difference from `expected`, measured in max(1, largest magnitude of expected). NaN counts as infinite.
inline double error_against(const Tensor& got, const std::vector<double>& expected) {
  const std::vector<double> values = got.to_vector<double>();
  REQUIRE(values.size() == expected.size());
  double scale = 1, worst = 0;
  for (double e : expected) scale = std::max(scale, std::abs(e));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double difference = std::abs(values[i] - expected[i]);
    worst = std::isnan(difference) ? HUGE_VAL : std::max(worst, difference);
  }
  return worst / scale;
}

// A contiguous tensor at a misaligned start with sentinels around it, so that a write outside is noticed.
class Guarded {
 public:
  Guarded(const Shape& shape, DType dtype) : numel_(numel_of(shape)), all_(full({numel_ + 2 * kMargin}, kSentinel, dtype)) {
    tensor = Tensor(all_.storage(), all_.device(), dtype, shape, contiguous_strides(shape), kMargin);
  }
  Guarded(const Tensor& values) : Guarded(values.shape(), values.dtype()) { copy_values(tensor, values); }
  bool is_intact() const {
    const std::vector<double> values = all_.to_vector<double>();
    return std::all_of(values.begin(), values.begin() + kMargin, [](double v) { return v == kSentinel; }) &&
           std::all_of(values.end() - kMargin, values.end(), [](double v) { return v == kSentinel; });
  }
  Tensor tensor;

 private:
  static constexpr std::int64_t kMargin = 33;
  static constexpr double kSentinel = 12288;  // exact in every floating dtype
  std::int64_t numel_;
  Tensor all_;
};

// The message of the InvalidArgument that f throws, or "" when it throws none.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const InvalidArgument& e) {
    return e.what();
  }
  return "";
}

// Whether f gives the same bits on 1, 2 and 4 threads.
inline bool same_on_all_threads(const std::function<std::vector<Tensor>()>& f) {
  const int before = num_threads();
  set_num_threads(1);
  const std::vector<Tensor> expected = f();
  bool is_same = true;
  for (int threads : {2, 4}) {
    set_num_threads(threads);
    const std::vector<Tensor> got = f();
    for (std::size_t i = 0; i < expected.size(); ++i) is_same = is_same && same_bits(got[i], expected[i]);
  }
  set_num_threads(before);
  return is_same;
}

}  // namespace refrain
