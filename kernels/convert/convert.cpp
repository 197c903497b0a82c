// Conversion between element types on the CPU.
#include <refrain/kernels/common/simd.h>
#include <refrain/kernels/common/strided_copy.h>
#include <refrain/kernels/convert/convert.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace refrain {

namespace {

// Rounds to float so that a second rounding to 11 bits or fewer gives what one rounding would have: inexact results get
// an odd last bit (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding
// to odd", 2008).
float round_to_odd(double value) {
  const float nearest = float(value);
  if (double(nearest) == value || std::isnan(value) || std::isinf(nearest)) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if (bits & 1u) return nearest;
  // The neighbour on value's other side has the odd bit.
  bits += std::abs(double(nearest)) < std::abs(value) ? 1u : ~0u;
  return std::bit_cast<float>(bits);
}

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
    return To(round_to_odd(value));
  else if constexpr (is_half<To> && (std::is_same_v<From, std::int64_t> || std::is_same_v<From, std::int32_t>)) {
    return To(round_to_odd(double(value)));
  } else if constexpr (is_half<To>)
    return To(float(value));
  else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>)
    return to_integer<To>(value);
  else
    return static_cast<To>(value);
}

// A contiguous run.
template <class To, class From>
void convert_run(const From* from, To* to, std::int64_t n) {
  if constexpr ((is_half<To> || is_half<From>) && (std::is_same_v<To, float> || std::is_same_v<From, float> || (is_half<To> && is_half<From>))) {
    simd::map(from, to, n, [](auto, auto v) HWY_ATTR { return v; });
  } else {
    for (std::int64_t i = 0; i < n; ++i) to[i] = convert_value<To>(from[i]);
  }
}

template <class To, class From>
void run_convert(const Convert& k) {
  const StridedLoop<2> loop(k.out.shape(), {k.out.strides(), k.x.strides()});
  const std::int64_t to_step = loop.inner_stride(0), from_step = loop.inner_stride(1);
  const From* x = k.x.data<From>();
  To* out = k.out.data<To>();
  loop.parallel_rows(16384, [&](const std::array<std::int64_t, 2>& at, std::int64_t n) {
    To* to = out + at[0];
    const From* from = x + at[1];
    if (to_step == 1 && from_step == 1) {
      convert_run(from, to, n);
    } else {
      for (std::int64_t i = 0; i < n; ++i) to[i * to_step] = convert_value<To>(from[i * from_step]);
    }
  });
}

}  // namespace

void validate(const Convert& k) { check_shape(k.name, "out", k.out, k.x.shape()); }
Cost cost(const Convert& k) { return {0, k.x.bytes() + k.out.bytes()}; }

void run(Cpu, const Convert& k) {
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  if (k.out.dtype() == k.x.dtype()) {
    copy_strided(k.out.shape(), int(size_of(k.out.dtype())), k.out.address(), k.out.strides(), k.x.address(), k.x.strides());
    return;
  }
  dispatch_all(k.out.dtype(),
               [&](auto to) { dispatch_all(k.x.dtype(), [&](auto from) { run_convert<decltype(to), decltype(from)>(k); }); });
}

}  // namespace refrain
