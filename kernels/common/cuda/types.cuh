// Element types on the device, and conversions that round as the CPU's kernels do.
#pragma once

#include <refrain/core/cuda/platform.cuh>
#include <refrain/core/dtype.h>

namespace refrain::cuda {

using half = __half;
using bfloat = __nv_bfloat16;

// Calls f with a value of the device's type for one of the four floating dtypes; `op` stands in the error for others.
template <class F>
decltype(auto) dispatch_floating(DType dtype, std::string_view op, F&& f) {
  switch (dtype) {
    case DType::f64: return f(double{});
    case DType::f32: return f(float{});
    case DType::f16: return f(half{});
    case DType::bf16: return f(bfloat{});
    default: fail(op, ": expected a floating dtype, got ", dtype);
  }
}

// What T is summed and computed in: f32, or f64 for itself.
template <class T> struct AccumulatorOf { using type = float; };
template <> struct AccumulatorOf<double> { using type = double; };
template <class T> using accumulator = typename AccumulatorOf<T>::type;

template <class T>
__device__ __forceinline__ accumulator<T> widen(T x) {
  if constexpr (std::is_same_v<T, half>) return __half2float(x);
  else if constexpr (std::is_same_v<T, bfloat>) return __bfloat162float(x);
  else return x;
}

// Round to nearest, ties to even.
template <class T, class A>
__device__ __forceinline__ T narrow(A x) {
  if constexpr (std::is_same_v<T, half>) return __float2half_rn(float(x));
  else if constexpr (std::is_same_v<T, bfloat>) return __float2bfloat16_rn(float(x));
  else return T(x);
}

// kBytes / sizeof(T) neighbours that are loaded and stored at once. The address must be a multiple of their size.
template <class T, int kBytes = 16>
struct alignas(kBytes) Pack {
  static constexpr int kSize = kBytes / int(sizeof(T));
  T values[kSize];
  __device__ T& operator[](int i) { return values[i]; }
  __device__ const T& operator[](int i) const { return values[i]; }
};

template <class T, int kBytes = 16>
__device__ __forceinline__ Pack<T, kBytes> load_pack(const T* address) {
  return *reinterpret_cast<const Pack<T, kBytes>*>(address);
}
template <class T, int kBytes>
__device__ __forceinline__ void store_pack(T* address, const Pack<T, kBytes>& pack) {
  *reinterpret_cast<Pack<T, kBytes>*>(address) = pack;
}

// Whether the address is a multiple of so many bytes.
inline bool is_aligned(const void* address, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(address) % bytes == 0; }

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// The device's types for the engine's: what In::data<T>() and Out::data<T>() must be asked for.
template <class T, class Arg>
auto* data_of(const Arg& arg) {
  using Address = decltype(arg.address());
  if constexpr (std::is_const_v<std::remove_pointer_t<Address>>) return reinterpret_cast<const T*>(arg.address());
  else return reinterpret_cast<T*>(arg.address());
}

}  // namespace refrain::cuda
