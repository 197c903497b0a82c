// What gemm() does to a tile after the product, while it is in the cache: bias, activation, sums of A's rows.
#include <refrain/kernels/common/simd.h>
#include <refrain/kernels/elementwise/gelu.h>
#include <refrain/kernels/matmul/gemm_engine.h>

namespace refrain::detail {

namespace {

namespace hn = simd::hn;

// Calls f with the activation as a function of (tag, vector).
template <class F>
void with_activation(Activation activation, F&& f) {
  switch (activation) {
    case Activation::none: return f([](auto, auto v) HWY_ATTR { return v; });
    // NaN stays NaN, as in the relu kernel.
    case Activation::relu: return f([](auto d, auto v) HWY_ATTR { return hn::IfThenZeroElse(hn::Lt(v, hn::Zero(d)), v); });
    case Activation::gelu_erf: return f([](auto d, auto v) HWY_ATTR { return simd::gelu_erf(d, v); });
    case Activation::gelu_tanh: return f([](auto d, auto v) HWY_ATTR { return simd::gelu_tanh(d, v); });
  }
}

}  // namespace

template <class T>
void apply_epilogue(T* c, T* pre, std::int64_t ldc, std::int64_t m, std::int64_t n, const T* bias, Activation activation) {
  with_activation(activation, [&](auto&& f) {
    const simd::Tag<T> d;
    const std::int64_t lanes = std::int64_t(hn::Lanes(d));
    for (std::int64_t i = 0; i < m; ++i) {
      T* row = c + i * ldc;
      T* pre_row = pre ? pre + i * ldc : nullptr;
      for (std::int64_t j = 0; j < n; j += lanes) {
        const std::size_t rest = std::size_t(n - j);
        auto v = simd::load_first(d, row + j, rest);
        if (bias) v = hn::Add(v, simd::load_first(d, bias + j, rest));
        if (pre_row) simd::store_first(v, d, pre_row + j, rest);
        simd::store_first(f(d, v), d, row + j, rest);
      }
    }
  });
}

template <class T>
void column_sums(const T* a, std::int64_t lda, std::int64_t k, std::int64_t m, T* sums) {
  const simd::Tag<T> d;
  const std::int64_t lanes = std::int64_t(hn::Lanes(d));
  // Four vectors side by side read whole cache lines of a row; each sum runs over k in order.
  std::int64_t i = 0;
  for (; i + 4 * lanes <= m; i += 4 * lanes) {
    auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
    for (std::int64_t p = 0; p < k; ++p) {
      const T* row = a + p * lda + i;
      s0 = hn::Add(s0, hn::LoadU(d, row));
      s1 = hn::Add(s1, hn::LoadU(d, row + lanes));
      s2 = hn::Add(s2, hn::LoadU(d, row + 2 * lanes));
      s3 = hn::Add(s3, hn::LoadU(d, row + 3 * lanes));
    }
    hn::StoreU(s0, d, sums + i);
    hn::StoreU(s1, d, sums + i + lanes);
    hn::StoreU(s2, d, sums + i + 2 * lanes);
    hn::StoreU(s3, d, sums + i + 3 * lanes);
  }
  for (; i < m; i += lanes) {
    const std::size_t rest = std::size_t(m - i);
    auto s = hn::Zero(d);
    for (std::int64_t p = 0; p < k; ++p) s = hn::Add(s, simd::load_first(d, a + p * lda + i, rest));
    simd::store_first(s, d, sums + i, rest);
  }
}

template void apply_epilogue(float*, float*, std::int64_t, std::int64_t, std::int64_t, const float*, Activation);
template void apply_epilogue(double*, double*, std::int64_t, std::int64_t, std::int64_t, const double*, Activation);
template void column_sums(const float*, std::int64_t, std::int64_t, std::int64_t, float*);
template void column_sums(const double*, std::int64_t, std::int64_t, std::int64_t, double*);

}  // namespace refrain::detail
