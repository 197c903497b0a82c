// Element types of tensors.
#pragma once

#include <refrain/core/check.h>
#include <refrain/core/half.h>

#include <cstdint>
#include <ostream>
#include <string_view>
#include <type_traits>

namespace refrain {

enum class DType : std::uint8_t { f64, f32, f16, bf16, i64, i32, u8, boolean };

constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64: case DType::i64: return 8;
    case DType::f32: case DType::i32: return 4;
    case DType::f16: case DType::bf16: return 2;
    case DType::u8: case DType::boolean: return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
    case DType::boolean: return "bool";
  }
  return "?";
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

inline std::ostream& operator<<(std::ostream& out, DType dtype) { return out << name_of(dtype); }

template <class T> struct dtype_of_type;
template <> struct dtype_of_type<double> { static constexpr DType value = DType::f64; };
template <> struct dtype_of_type<float> { static constexpr DType value = DType::f32; };
template <> struct dtype_of_type<f16> { static constexpr DType value = DType::f16; };
template <> struct dtype_of_type<bf16> { static constexpr DType value = DType::bf16; };
template <> struct dtype_of_type<std::int64_t> { static constexpr DType value = DType::i64; };
template <> struct dtype_of_type<std::int32_t> { static constexpr DType value = DType::i32; };
template <> struct dtype_of_type<std::uint8_t> { static constexpr DType value = DType::u8; };
template <> struct dtype_of_type<bool> { static constexpr DType value = DType::boolean; };

template <class T> inline constexpr DType dtype_of = dtype_of_type<T>::value;

template <class T> inline constexpr bool is_half = std::is_same_v<T, f16> || std::is_same_v<T, bf16>;

// The type sums and statistics over T are kept in.
template <class T> struct accumulator { using type = float; };
template <> struct accumulator<double> { using type = double; };
template <class T> using accumulator_t = typename accumulator<T>::type;

// The dtype of accumulator_t: f32 for 16-bit types. Only for floating types.
constexpr DType accumulator_dtype(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

constexpr bool is_16_bit(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

// Calls f with a value of the C++ type of `dtype`, one of the four floating types.
template <class F>
decltype(auto) dispatch_floating(DType dtype, std::string_view op, F&& f) {
  switch (dtype) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::f16: return f(f16{});
    case DType::bf16: return f(bf16{});
    default: fail<InvalidArgument>(op, ": expected a floating dtype, got ", dtype);
  }
}

// Calls f with a value of the C++ type of `dtype`, any of the eight.
template <class F>
decltype(auto) dispatch_all(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::f16: return f(f16{});
    case DType::bf16: return f(bf16{});
    case DType::i64: return f(std::int64_t{});
    case DType::i32: return f(std::int32_t{});
    case DType::u8: return f(std::uint8_t{});
    case DType::boolean: return f(bool{});
  }
  fail<InternalError>("unknown dtype");
}

}  // namespace refrain
