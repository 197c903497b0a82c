#include <refrain/core/io/convert_floating.h>

#include <bit>
#include <cmath>
#include <cstring>

namespace refrain {

namespace {

// Rounds to float with an odd last bit where that is inexact, so that the second rounding, to 11 bits or fewer, gives what
// one rounding would have (Boldo, Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
float round_to_odd(double value) {
  const float nearest = float(value);
  if (double(nearest) == value || std::isnan(value) || std::isinf(nearest)) return nearest;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if (bits & 1u) return nearest;
  bits += std::abs(double(nearest)) < std::abs(value) ? 1u : ~0u;
  return std::bit_cast<float>(bits);
}

template <class To, class From>
To converted(From value) {
  if constexpr (is_half<From>) return converted<To>(float(value));
  else if constexpr (is_half<To> && std::is_same_v<From, double>) return To(round_to_odd(value));
  else return To(value);
}

}  // namespace

void convert_floating(DType from_dtype, const std::byte* from, DType to_dtype, std::byte* to, std::int64_t count) {
  dispatch_floating(from_dtype, "convert_floating", [&](auto from_type) {
    dispatch_floating(to_dtype, "convert_floating", [&](auto to_type) {
      using From = decltype(from_type);
      using To = decltype(to_type);
      for (std::int64_t i = 0; i < count; ++i) {
        From value;
        std::memcpy(&value, from + i * std::int64_t(sizeof(From)), sizeof(From));
        const To result = converted<To>(value);
        std::memcpy(to + i * std::int64_t(sizeof(To)), &result, sizeof(To));
      }
    });
  });
}

}  // namespace refrain
