#include <refrain/dist/reduce_ranks.h>

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <type_traits>

namespace refrain::detail {

namespace {

constexpr std::int64_t kBlock = 2048;  // sums of a block stay in the first cache

// Integers wrap without undefined behaviour.
template <class T>
auto wide_type() {
  if constexpr (is_half<T>)
    return float{};
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return std::uint64_t{};
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return std::uint32_t{};
  else if constexpr (std::is_same_v<T, bool>)
    return std::uint8_t{};
  else
    return T{};
}
template <class T>
using Sum = decltype(wide_type<T>());

template <class T>
Sum<T> larger(Sum<T> a, T b) {
  if constexpr (std::is_same_v<T, bool>) {
    return a > std::uint8_t(b) ? a : std::uint8_t(b);
  } else if constexpr (std::is_integral_v<T>) {
    return T(a) > b ? a : Sum<T>(b);
  } else {
    const Sum<T> value = Sum<T>(b);
    return value > a || value != value ? value : a;  // a NaN stays
  }
}

template <class T>
void reduce(ReduceOp op, std::span<const std::byte* const> parts, std::byte* out, std::int64_t count) {
  std::array<Sum<T>, kBlock> sums;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, count - begin);
    const auto at = [&](std::size_t r) { return reinterpret_cast<const T*>(parts[r]) + begin; };
    const T* first = at(0);
    for (std::int64_t i = 0; i < length; ++i) sums[std::size_t(i)] = Sum<T>(first[i]);
    for (std::size_t r = 1; r < parts.size(); ++r) {
      const T* part = at(r);
      if (op == ReduceOp::max)
        for (std::int64_t i = 0; i < length; ++i) sums[std::size_t(i)] = larger<T>(sums[std::size_t(i)], part[i]);
      else
        for (std::int64_t i = 0; i < length; ++i) sums[std::size_t(i)] = Sum<T>(sums[std::size_t(i)] + Sum<T>(part[i]));
    }
    if constexpr (std::is_floating_point_v<Sum<T>>) {
      const Sum<T> divisor = Sum<T>(parts.size());
      if (op == ReduceOp::mean)
        for (std::int64_t i = 0; i < length; ++i) sums[std::size_t(i)] /= divisor;
    }
    T* to = reinterpret_cast<T*>(out) + begin;
    for (std::int64_t i = 0; i < length; ++i) to[i] = T(sums[std::size_t(i)]);
  }
}

class FlushSubnormals {
 public:
  FlushSubnormals() : old_(_mm_getcsr()) { _mm_setcsr(old_ | 0x8040u); }
  ~FlushSubnormals() { _mm_setcsr(old_); }

 private:
  unsigned old_;
};

}  // namespace

void reduce_ranks(DType dtype, ReduceOp op, std::span<const std::byte* const> parts, std::byte* out, std::int64_t count) {
  const FlushSubnormals flush;
  dispatch_all(dtype, [&]<class T>(T) { reduce<T>(op, parts, out, count); });
}

}  // namespace refrain::detail
