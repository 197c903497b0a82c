// Runs a function over contiguous vectors of f64 or f32 for operands of any strides, f32 also for 16-bit ones: runs that
// are contiguous in memory and of that type are handed over as they are, others go through small buffers. So an element
// meets the same arithmetic in every layout and type.
#pragma once

#include <refrain/kernels/common/simd.h>
#include <refrain/kernels/common/strided.h>
#include <refrain/kernels/convert/chunk.h>
#include <refrain/kernels/kernel.h>

namespace refrain {

// Elements a piece of parallel work holds: enough to outweigh a pool's wake, small enough for the L2 cache.
inline constexpr std::int64_t kElementwiseGrain = 16384;

// Calls f with a value of the type that arithmetic on a result of `dtype` is done in: f64 or f32.
template <class F>
void dispatch_arithmetic(DType dtype, F&& f) {
  if (dtype == DType::f64)
    f(double{});
  else
    f(float{});
}

// Calls f(inputs, out, n) with contiguous arrays: `inputs` is an array of N pointers. All have the out's shape.
template <class T, std::size_t N, class F>
void map_strided(const Out& out, const std::array<const In*, N>& in, F&& f) {
  if (!out.has_bytes() || out.numel() == 0) return;
  std::array<Strides, N + 1> strides{out.strides()};
  for (std::size_t i = 0; i < N; ++i) strides[i + 1] = broadcast_strides(in[i]->shape(), in[i]->strides(), out.shape());
  const StridedLoop<N + 1> loop(out.shape(), strides);
  bool is_direct = out.dtype() == dtype_of<T> && (loop.inner() == 1 || loop.inner_stride(0) == 1);
  for (std::size_t i = 0; i < N; ++i) {
    is_direct = is_direct && in[i]->dtype() == dtype_of<T> && (loop.inner() == 1 || loop.inner_stride(i + 1) == 1);
  }

  loop.parallel_rows(kElementwiseGrain, [&](const std::array<std::int64_t, N + 1>& offsets, std::int64_t n) {
    std::array<const T*, N> from;
    if (is_direct) {
      for (std::size_t i = 0; i < N; ++i) from[i] = in[i]->template data<T>() + offsets[i + 1];
      return f(from, out.template data<T>() + offsets[0], n);
    }
    HWY_ALIGN T buffer[N + 1][kChunk];
    for (std::size_t i = 0; i < N; ++i) {  // a repeated element fills its buffer once
      if (loop.inner_stride(i + 1) != 0) continue;
      T value;
      const T* element =
          read_chunk(in[i]->dtype(), in[i]->address() + offsets[i + 1] * std::int64_t(size_of(in[i]->dtype())), 1, 1, &value);
      std::fill_n(buffer[i], std::min(n, kChunk), *element);
      from[i] = buffer[i];
    }
    for (std::int64_t begin = 0; begin < n; begin += kChunk) {
      const std::int64_t count = std::min(kChunk, n - begin);
      for (std::size_t i = 0; i < N; ++i) {
        const std::int64_t step = loop.inner_stride(i + 1), size = std::int64_t(size_of(in[i]->dtype()));
        if (step != 0)
          from[i] = read_chunk(in[i]->dtype(), in[i]->address() + (offsets[i + 1] + begin * step) * size, step, count, buffer[i]);
      }
      const std::int64_t step = loop.inner_stride(0);
      std::byte* target = out.address() + (offsets[0] + begin * step) * std::int64_t(size_of(out.dtype()));
      if (out.dtype() == dtype_of<T> && step == 1) {
        f(from, reinterpret_cast<T*>(target), count);
      } else {
        f(from, buffer[N], count);
        write_chunk(buffer[N], count, out.dtype(), target, step);
      }
    }
  });
}

// out = f(d, x) over vectors of T.
template <class T, class F>
void map_unary(const Out& out, const In& x, F&& f) {
  map_strided<T, 1>(out, {&x}, [&](const std::array<const T*, 1>& in, T* to, std::int64_t n) { simd::map(in[0], to, n, f); });
}

// out = f(d, a, b) over vectors of T.
template <class T, class F>
void map_binary(const Out& out, const In& a, const In& b, F&& f) {
  map_strided<T, 2>(out, {&a, &b}, [&](const std::array<const T*, 2>& in, T* to, std::int64_t n) { simd::map(in[0], in[1], to, n, f); });
}

}  // namespace refrain
