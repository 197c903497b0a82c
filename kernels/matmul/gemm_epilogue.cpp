// What gemm() does to a tile after the product, while it is in the cache: bias, activation, sums of A's rows.
#include <refrain/kernels/common/simd_span.h>
#include <refrain/kernels/elementwise/gelu.h>
#include <refrain/kernels/matmul/gemm_engine.h>

#include <algorithm>

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
void apply_epilogue(T* c, T* pre, std::int64_t ldc, std::int64_t m, std::int64_t n, const T* bias, const T* row_bias, Activation activation) {
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
        if (row_bias) v = hn::Add(v, hn::Set(d, row_bias[i]));
        if (pre_row) simd::store_first(v, d, pre_row + j, rest);
        simd::store_first(f(d, v), d, row + j, rest);
      }
    }
  });
}

template <class C>
void finish_tile(const Finish<C>& finish, const float* sums, std::int64_t ld, std::int64_t m, std::int64_t n) {
  with_activation(finish.activation, [&](auto&& f) {
    const simd::Tag<float> d;
    const auto alpha = hn::Set(d, finish.alpha), beta = hn::Set(d, finish.beta);
    for (std::int64_t i = 0; i < m; ++i) {
      const float* from = sums + i * ld;
      C* c = finish.c + i * finish.ldc;
      C* pre = finish.pre ? finish.pre + i * finish.ldc : nullptr;
      simd::for_vectors(d, n, [&](std::int64_t j, auto lanes) HWY_ATTR {
        auto start = finish.bias ? lanes.load(d, finish.bias + j) : hn::Zero(d);
        if (finish.row_bias) start = hn::Add(start, hn::Set(d, finish.row_bias[i]));
        if (finish.beta != 0) start = hn::MulAdd(beta, lanes.load(d, c + j), start);
        auto v = hn::MulAdd(alpha, lanes.load(d, from + j), start);
        if (finish.activation != Activation::none) {
          // The activation reads what its backward will read.
          C rounded[hn::MaxLanes(d)];
          simd::store(v, d, rounded);
          v = simd::load(d, rounded);
        }
        if (pre) lanes.store(v, d, pre + j);
        lanes.store(f(d, v), d, c + j);
      });
    }
  });
}

namespace {

// The sums of `vectors` neighbouring vectors of columns (the last with `rest` lanes), in steps of 256 rows whose sums
// are added up: the rounding error then grows with k / 256.
template <std::size_t vectors, class S, class C>
void sum_vectors(const S* a, std::int64_t lda, std::int64_t k, std::size_t rest, C* sums) {
  using T = accumulator_t<S>;
  constexpr std::int64_t kStep = 256;
  const simd::Tag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  simd::Vector<T> total[vectors];
  for (auto& t : total) t = hn::Zero(d);
  for (std::int64_t begin = 0; begin < k; begin += kStep) {
    simd::Vector<T> part[vectors];
    for (auto& s : part) s = hn::Zero(d);
    for (std::int64_t p = begin; p < std::min(k, begin + kStep); ++p) {
      for (std::size_t v = 0; v < vectors; ++v) part[v] = hn::Add(part[v], simd::load_first(d, a + p * lda + v * lanes, rest));
    }
    for (std::size_t v = 0; v < vectors; ++v) total[v] = hn::Add(total[v], part[v]);
  }
  for (std::size_t v = 0; v < vectors; ++v) simd::store_first(total[v], d, sums + v * lanes, rest);
}

}  // namespace

template <class S, class C>
void column_sums(const S* a, std::int64_t lda, std::int64_t k, std::int64_t m, C* sums) {
  const std::int64_t lanes = std::int64_t(hn::Lanes(simd::Tag<accumulator_t<S>>()));
  std::int64_t i = 0;
  // Four vectors side by side read whole cache lines of a row.
  for (; i + 4 * lanes <= m; i += 4 * lanes) sum_vectors<4>(a + i, lda, k, std::size_t(lanes), sums + i);
  for (; i < m; i += lanes) sum_vectors<1>(a + i, lda, k, std::size_t(m - i), sums + i);
}

template void apply_epilogue(float*, float*, std::int64_t, std::int64_t, std::int64_t, const float*, const float*, Activation);
template void apply_epilogue(double*, double*, std::int64_t, std::int64_t, std::int64_t, const double*, const double*, Activation);
template void finish_tile(const Finish<float>&, const float*, std::int64_t, std::int64_t, std::int64_t);
template void finish_tile(const Finish<f16>&, const float*, std::int64_t, std::int64_t, std::int64_t);
template void finish_tile(const Finish<bf16>&, const float*, std::int64_t, std::int64_t, std::int64_t);
template void column_sums(const float*, std::int64_t, std::int64_t, std::int64_t, float*);
template void column_sums(const double*, std::int64_t, std::int64_t, std::int64_t, double*);
template void column_sums(const f16*, std::int64_t, std::int64_t, std::int64_t, f16*);
template void column_sums(const bf16*, std::int64_t, std::int64_t, std::int64_t, bf16*);
template void column_sums(const f16*, std::int64_t, std::int64_t, std::int64_t, float*);
template void column_sums(const bf16*, std::int64_t, std::int64_t, std::int64_t, float*);

}  // namespace refrain::detail
