#include <refrain/core/check.h>
#include <refrain/kernels/common/simd.h>
#include <refrain/kernels/convert/chunk.h>

#include <type_traits>

namespace refrain {

namespace {

// Calls f with a value of the operand's type, one of those that arithmetic in T serves.
template <class T, class F>
decltype(auto) dispatch_storage(DType dtype, F&& f) {
  if constexpr (std::is_same_v<T, double>) {
    invariant(dtype == DType::f64, "a chunk of f64 read from another type");
    return f(double{});
  } else {
    switch (dtype) {
      case DType::f32: return f(float{});
      case DType::f16: return f(f16{});
      case DType::bf16: return f(bf16{});
      default: fail<InternalError>("internal error: a chunk of f32 read from ", dtype);
    }
  }
}

}  // namespace

template <class T>
const T* read_chunk(DType dtype, const std::byte* first, std::int64_t step, std::int64_t n, T* buffer) {
  return dispatch_storage<T>(dtype, [&](auto zero) -> const T* {
    using S = decltype(zero);
    const S* from = reinterpret_cast<const S*>(first);
    if constexpr (std::is_same_v<S, T>) {
      if (step == 1) return from;
      for (std::int64_t i = 0; i < n; ++i) buffer[i] = from[i * step];
    } else {
      S packed[kChunk];
      if (step != 1) {
        for (std::int64_t i = 0; i < n; ++i) packed[i] = from[i * step];
      }
      simd::copy(step == 1 ? from : packed, buffer, n);
    }
    return buffer;
  });
}

template <class T>
void write_chunk(const T* x, std::int64_t n, DType dtype, std::byte* first, std::int64_t step) {
  dispatch_storage<T>(dtype, [&](auto zero) {
    using S = decltype(zero);
    S* to = reinterpret_cast<S*>(first);
    if (step == 1) return simd::copy(x, to, n);
    if constexpr (std::is_same_v<S, T>) {
      for (std::int64_t i = 0; i < n; ++i) to[i * step] = x[i];
    } else {
      S packed[kChunk];
      simd::copy(x, packed, n);
      for (std::int64_t i = 0; i < n; ++i) to[i * step] = packed[i];
    }
  });
}

template const float* read_chunk<float>(DType, const std::byte*, std::int64_t, std::int64_t, float*);
template const double* read_chunk<double>(DType, const std::byte*, std::int64_t, std::int64_t, double*);
template void write_chunk<float>(const float*, std::int64_t, DType, std::byte*, std::int64_t);
template void write_chunk<double>(const double*, std::int64_t, DType, std::byte*, std::int64_t);

}  // namespace refrain
