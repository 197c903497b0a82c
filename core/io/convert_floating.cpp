#include <refrain/core/io/convert_floating.h>
#include <refrain/core/rounding.h>

#include <cstring>

namespace refrain {

namespace {

template <class To, class From>
To converted(From value) {
  if constexpr (is_half<From>) return converted<To>(float(value));
  else if constexpr (std::is_same_v<From, double>) return rounded<To>(value);
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
