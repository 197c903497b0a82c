// Functions that CUDA adds to C++'s on the device. Approximate ones are exact here: what a GPU's last bits are is not modelled.
#pragma once

#include <refrain/kernels/emulator/thread.h>

#include <bit>
#include <cmath>
#include <type_traits>

// The C library declares these too, without providing them.
#define __expf(x) ::std::exp(float(x))
#define __exp2f(x) ::std::exp2(float(x))
#define __exp10f(x) ::std::pow(10.0f, float(x))
#define __logf(x) ::std::log(float(x))
#define __log2f(x) ::std::log2(float(x))
#define __powf(x, y) ::std::pow(float(x), float(y))
#define __sinf(x) ::std::sin(float(x))
#define __cosf(x) ::std::cos(float(x))

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

// Rounded to nearest by name. The compiler contracts nothing (-ffp-contract=off).
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __frsqrt_rn(float a) { return float(1.0 / std::sqrt(double(a))); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline double __dsqrt_rn(double a) { return std::sqrt(a); }
inline double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }

inline float __double2float_rn(double a) { return float(a); }
inline int __float2int_rn(float a) { return int(std::nearbyint(a)); }
inline int __float2int_rz(float a) { return int(a); }
inline int __float2int_rd(float a) { return int(std::floor(a)); }
inline unsigned __float2uint_rn(float a) { return unsigned(std::nearbyint(a)); }
inline unsigned __float2uint_rz(float a) { return unsigned(a); }
inline float __int2float_rn(int a) { return float(a); }
inline float __uint2float_rn(unsigned a) { return float(a); }
inline float __ll2float_rn(long long a) { return float(a); }
inline float __ull2float_rn(unsigned long long a) { return float(a); }
inline double __int2double_rn(int a) { return a; }
inline double __uint2double_rn(unsigned a) { return a; }
inline double __ll2double_rn(long long a) { return double(a); }
inline double __ull2double_rn(unsigned long long a) { return double(a); }

inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
inline float __int_as_float(int a) { return std::bit_cast<float>(a); }
inline long long __double_as_longlong(double a) { return std::bit_cast<long long>(a); }
inline double __longlong_as_double(long long a) { return std::bit_cast<double>(a); }

inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned(std::uint64_t(a) * b >> 32); }
inline int __mulhi(int a, int b) { return int(std::int64_t(a) * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  __extension__ using Wide = unsigned __int128;
  return (unsigned long long)(Wide(a) * b >> 64);
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(unsigned(x)); }
inline int __clzll(long long x) { return std::countl_zero((unsigned long long)(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x) {
  unsigned y = 0;
  for (int bit = 0; bit < 32; ++bit) y |= (x >> bit & 1) << (31 - bit);
  return y;
}
inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) { return unsigned((std::uint64_t(high) << 32 | low) << (shift & 31) >> 32); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) { return unsigned((std::uint64_t(high) << 32 | low) >> (shift & 31)); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  const std::uint64_t bytes = std::uint64_t(b) << 32 | a;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned select = selector >> (4 * i) & 15, byte = unsigned(bytes >> (select & 7) * 8) & 255;
    result |= ((select & 8) != 0 ? (byte >> 7) * 255u : byte) << (8 * i);
  }
  return result;
}

template <class T> T __ldg(const T* address) { return *address; }
template <class T> T __ldcg(const T* address) { return *address; }
template <class T> T __ldcs(const T* address) { return *address; }
template <class T> void __stcg(T* address, T value) { *address = value; }
template <class T> void __stcs(T* address, T value) { *address = value; }

// As on the device: a NaN loses against a number.
template <class T> requires std::is_arithmetic_v<T>
T max(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
  else return a > b ? a : b;
}
template <class T> requires std::is_arithmetic_v<T>
T min(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
  else return a < b ? a : b;
}
