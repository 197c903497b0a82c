// Conversion between element types on the CPU.
#include <refrain/core/rounding.h>
#include <refrain/kernels/common/simd.h>
#include <refrain/kernels/common/strided_copy.h>
#include <refrain/kernels/convert/chunk.h>
#include <refrain/kernels/convert/convert.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace refrain {

namespace {

template <class To, class From>
To to_integer(From value) {
  constexpr From low = From(std::numeric_limits<To>::min()), high = From(std::numeric_limits<To>::max());
  if (std::isnan(value)) return 0;
  if (value <= low) return std::numeric_limits<To>::min();
  if (value >= high) return std::numeric_limits<To>::max();
  return static_cast<To>(value);
}

template <class To, class From>
To convert_value(From value) {
  if constexpr (std::is_same_v<To, From>)
    return value;
  else if constexpr (is_half<From>)
    return convert_value<To>(float(value));
  else if constexpr (std::is_same_v<To, bool>)
    return value != From(0);
  else if constexpr (is_half<To> && std::is_same_v<From, double>)
    return rounded<To>(value);
  else if constexpr (is_half<To> && (std::is_same_v<From, std::int64_t> || std::is_same_v<From, std::int32_t>)) {
    return rounded<To>(double(value));
  } else if constexpr (is_half<To>)
    return To(float(value));
  else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>)
    return to_integer<To>(value);
  else
    return static_cast<To>(value);
}

template <class T>
inline constexpr bool is_f32_or_half = is_half<T> || std::is_same_v<T, float>;

// n elements of one step each. What vectors convert goes to them, chunk by chunk where it lies scattered.
template <class To, class From>
void convert_run(const From* from, std::int64_t from_step, To* to, std::int64_t to_step, std::int64_t n) {
  if constexpr (is_f32_or_half<To> && is_f32_or_half<From> && !std::is_same_v<To, From>) {
    if (from_step == 1 && to_step == 1) return simd::copy(from, to, n);
    HWY_ALIGN float buffer[kChunk];
    for (std::int64_t i = 0; i < n; i += kChunk) {
      const std::int64_t count = std::min(kChunk, n - i);
      const float* chunk = read_chunk(dtype_of<From>, reinterpret_cast<const std::byte*>(from + i * from_step), from_step, count, buffer);
      write_chunk(chunk, count, dtype_of<To>, reinterpret_cast<std::byte*>(to + i * to_step), to_step);
    }
  } else if (from_step == 1 && to_step == 1) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = convert_value<To>(from[i]);
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i * to_step] = convert_value<To>(from[i * from_step]);
  }
}

template <class To, class From>
void convert(const Shape& shape, To* out, const Strides& to_strides, const From* x, const Strides& from_strides) {
  const StridedLoop<2> loop(shape, {to_strides, from_strides});
  const std::int64_t to_step = loop.inner_stride(0), from_step = loop.inner_stride(1);
  loop.parallel_rows(
      16384, [&](const std::array<std::int64_t, 2>& at, std::int64_t n) { convert_run(x + at[1], from_step, out + at[0], to_step, n); });
}

}  // namespace

void validate(const Convert& k) { check_shape(k.name, "out", k.out, k.x.shape()); }
Cost cost(const Convert& k) { return {0, k.x.bytes() + k.out.bytes()}; }

void run(Cpu, const Convert& k) {
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  convert_strided(k.out.shape(), k.out.dtype(), k.out.address(), k.out.strides(), k.x.dtype(), k.x.address(), k.x.strides());
}

void convert_strided(const Shape& shape, DType to_dtype, std::byte* to, const Strides& to_strides, DType from_dtype, const std::byte* from,
                     const Strides& from_strides) {
  if (to_dtype == from_dtype) return copy_strided(shape, int(size_of(to_dtype)), to, to_strides, from, from_strides);
  dispatch_all(to_dtype, [&](auto to_zero) {
    dispatch_all(from_dtype, [&](auto from_zero) {
      convert(shape, reinterpret_cast<decltype(to_zero)*>(to), to_strides, reinterpret_cast<const decltype(from_zero)*>(from),
              from_strides);
    });
  });
}

}  // namespace refrain
