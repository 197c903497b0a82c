// Runs a function over contiguous vectors for operands of any strides: runs that are contiguous in memory are handed
// over as they are, others go through small buffers. So an element meets the same arithmetic in every layout.
#pragma once

#include <refrain/kernels/common/simd.h>
#include <refrain/kernels/common/strided.h>
#include <refrain/kernels/kernel.h>

namespace refrain {

// Elements a piece of parallel work holds: enough to outweigh a pool's wake, small enough for the L2 cache.
inline constexpr std::int64_t kElementwiseGrain = 16384;

// Calls f(inputs, out, n) with contiguous arrays: `inputs` is an array of N pointers. All have the out's shape.
template <class T, std::size_t N, class F>
void map_strided(const Out& out, const std::array<const TensorArg*, N>& in, const std::array<const T*, N>& data, F&& f) {
  if (!out.has_bytes() || out.numel() == 0) return;
  std::array<Strides, N + 1> strides{out.strides()};
  for (std::size_t i = 0; i < N; ++i) strides[i + 1] = broadcast_strides(in[i]->shape(), in[i]->strides(), out.shape());
  const StridedLoop<N + 1> loop(out.shape(), strides);
  bool contiguous = loop.inner() == 1 || loop.inner_stride(0) == 1;
  for (std::size_t i = 0; i < N; ++i) contiguous = contiguous && (loop.inner() == 1 || loop.inner_stride(i + 1) == 1);

  loop.parallel_rows(kElementwiseGrain, [&](const std::array<std::int64_t, N + 1>& offsets, std::int64_t n) {
    T* to = out.template data<T>() + offsets[0];
    std::array<const T*, N> from;
    for (std::size_t i = 0; i < N; ++i) from[i] = data[i] + offsets[i + 1];
    if (contiguous) return f(from, to, n);

    constexpr std::int64_t kChunk = 512;
    HWY_ALIGN T buffer[N + 1][kChunk];
    std::array<const T*, N> chunk_from;
    for (std::size_t i = 0; i < N; ++i) {
      if (loop.inner_stride(i + 1) == 0) std::fill_n(buffer[i], std::min(n, kChunk), *from[i]);
    }
    for (std::int64_t begin = 0; begin < n; begin += kChunk) {
      const std::int64_t count = std::min(kChunk, n - begin);
      for (std::size_t i = 0; i < N; ++i) {
        const std::int64_t step = loop.inner_stride(i + 1);
        const T* source = from[i] + begin * step;
        chunk_from[i] = step == 1 ? source : buffer[i];
        if (step != 0 && step != 1) {
          for (std::int64_t j = 0; j < count; ++j) buffer[i][j] = source[j * step];
        }
      }
      const std::int64_t step = loop.inner_stride(0);
      T* target = to + begin * step;
      f(chunk_from, step == 1 ? target : buffer[N], count);
      if (step != 1) {
        for (std::int64_t j = 0; j < count; ++j) target[j * step] = buffer[N][j];
      }
    }
  });
}

// out = f(d, x) over vectors of T.
template <class T, class F>
void map_unary(const Out& out, const In& x, F&& f) {
  map_strided<T, 1>(out, {&x}, {x.data<T>()},
                    [&](const std::array<const T*, 1>& in, T* to, std::int64_t n) { simd::map(in[0], to, n, f); });
}

// out = f(d, a, b) over vectors of T.
template <class T, class F>
void map_binary(const Out& out, const In& a, const In& b, F&& f) {
  map_strided<T, 2>(out, {&a, &b}, {a.data<T>(), b.data<T>()},
                    [&](const std::array<const T*, 2>& in, T* to, std::int64_t n) { simd::map(in[0], in[1], to, n, f); });
}

}  // namespace refrain
