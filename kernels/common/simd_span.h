// Loops over a contiguous span whose tail goes through the same arithmetic as its body: the last, partial vector is
// loaded and stored under a mask and never touches memory past the span. Only for .cpp files of kernels.
#pragma once

#include <refrain/kernels/common/simd.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace refrain::simd {

// A whole vector at a time.
struct AllLanes {
  template <class D, class S>
  HWY_INLINE hn::Vec<D> load(D d, const S* p) const {
    return simd::load(d, p);
  }
  template <class D, class S>
  HWY_INLINE void store(hn::Vec<D> v, D d, S* p) const {
    simd::store(v, d, p);
  }
  // The lanes that belong to the span, `other` elsewhere.
  template <class D>
  HWY_INLINE hn::Vec<D> select(D, hn::Vec<D> v, hn::Vec<D>) const {
    return v;
  }
  // The lanes that belong to the span, zero elsewhere: for sums.
  template <class D>
  HWY_INLINE hn::Vec<D> keep(D, hn::Vec<D> v) const {
    return v;
  }
};

// The first `count` lanes; loads put zero in the others.
struct FirstLanes {
  std::size_t count;

  template <class D, class S>
  HWY_INLINE hn::Vec<D> load(D d, const S* p) const {
    return load_first(d, p, count);
  }
  template <class D, class S>
  HWY_INLINE void store(hn::Vec<D> v, D d, S* p) const {
    store_first(v, d, p, count);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> select(D d, hn::Vec<D> v, hn::Vec<D> other) const {
    return hn::IfThenElse(hn::FirstN(d, count), v, other);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> keep(D d, hn::Vec<D> v) const {
    return hn::IfThenElseZero(hn::FirstN(d, count), v);
  }
};

// Calls f(k, i, lanes) for the vectors that start at element i of [0, n); k (an integral constant below K) numbers the
// accumulator to use, so that K chains of additions run side by side. The order depends on n alone.
template <std::size_t K, class D, class F>
HWY_INLINE void for_vectors(D d, std::int64_t n, F&& f) {
  const std::int64_t step = std::int64_t(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + std::int64_t(K) * step <= n; i += std::int64_t(K) * step) {
    [&]<std::size_t... k>(std::index_sequence<k...>) {
      (f(std::integral_constant<std::size_t, k>{}, i + std::int64_t(k) * step, AllLanes{}), ...);
    }(std::make_index_sequence<K>{});
  }
  constexpr std::integral_constant<std::size_t, 0> first{};
  if constexpr (K > 1) {
    for (; i + step <= n; i += step) f(first, i, AllLanes{});
  }
  if (i < n) f(first, i, FirstLanes{std::size_t(n - i)});
}

template <class D, class F>
HWY_INLINE void for_vectors(D d, std::int64_t n, F&& f) {
  for_vectors<1>(d, n, [&](auto, std::int64_t i, auto lanes) HWY_ATTR { f(i, lanes); });
}

// K running sums that are added up in a fixed tree.
template <class D, std::size_t K>
struct Sums {
  hn::Vec<D> part[K];
  explicit Sums(D d) {
    for (std::size_t k = 0; k < K; ++k) part[k] = hn::Zero(d);
  }
  HWY_INLINE hn::TFromD<D> total(D d) const {
    hn::Vec<D> sum[K];
    for (std::size_t k = 0; k < K; ++k) sum[k] = part[k];
    for (std::size_t width = K / 2; width > 0; width /= 2) {
      for (std::size_t k = 0; k < width; ++k) sum[k] = hn::Add(sum[k], sum[k + width]);
    }
    return hn::GetLane(hn::SumOfLanes(d, sum[0]));
  }
};

}  // namespace refrain::simd
