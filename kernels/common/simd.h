// Vectors of the build's target (static dispatch of Google Highway): partial loads and stores, and loops whose last,
// shorter vector goes through the same arithmetic as the others. For .cpp files of the kernels room only.
#pragma once

#ifndef HWY_COMPILE_ONLY_STATIC  // see kernels/room.cmake; tests include this header too
#define HWY_COMPILE_ONLY_STATIC
#endif
#include "hwy/highway.h"

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace refrain::simd {

namespace hn = hwy::HWY_NAMESPACE;

template <class T> using Tag = hn::ScalableTag<T>;
template <class T> using Vector = hn::Vec<Tag<T>>;

// The first n lanes from p, the others zero. n may exceed the number of lanes; memory behind p[n - 1] is not touched.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE hn::Vec<D> load_first(D d, const T* HWY_RESTRICT p, std::size_t n) {
  if (n >= hn::Lanes(d)) return hn::LoadU(d, p);
#if HWY_TARGET == HWY_AVX2 || !HWY_MEM_OPS_MIGHT_FAULT
  // Masked loads of 4- and 8-byte lanes neither fault nor need alignment here.
  static_assert(sizeof(T) >= 4);
  return hn::MaskedLoad(hn::FirstN(d, n), d, p);
#else
  HWY_ALIGN T buffer[hn::MaxLanes(D())] = {};
  std::memcpy(buffer, p, n * sizeof(T));
  return hn::Load(d, buffer);
#endif
}

// Stores the first n lanes; memory behind p[n - 1] is not touched.
template <class D, class T = hn::TFromD<D>>
HWY_INLINE void store_first(hn::Vec<D> v, D d, T* HWY_RESTRICT p, std::size_t n) {
  if (n >= hn::Lanes(d)) return hn::StoreU(v, d, p);
#if HWY_TARGET == HWY_AVX2 || !HWY_MEM_OPS_MIGHT_FAULT
  hn::BlendedStore(v, hn::FirstN(d, n), d, p);
#else
  HWY_ALIGN T buffer[hn::MaxLanes(D())];
  hn::Store(v, d, buffer);
  std::memcpy(p, buffer, n * sizeof(T));
#endif
}

// out[i] = f(d, x[i]) for i below n, f taking and returning vectors. out may be x.
template <class T, class F>
HWY_INLINE void map(const T* x, T* out, std::int64_t n, F&& f) {
  const Tag<T> d;
  const std::int64_t lanes = std::int64_t(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(f(d, hn::LoadU(d, x + i)), d, out + i);
  if (i < n) store_first(f(d, load_first(d, x + i, std::size_t(n - i))), d, out + i, std::size_t(n - i));
}

// out[i] = f(d, a[i], b[i]). out may be a or b.
template <class T, class F>
HWY_INLINE void map(const T* a, const T* b, T* out, std::int64_t n, F&& f) {
  const Tag<T> d;
  const std::int64_t lanes = std::int64_t(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(f(d, hn::LoadU(d, a + i), hn::LoadU(d, b + i)), d, out + i);
  if (i < n) {
    const std::size_t rest = std::size_t(n - i);
    store_first(f(d, load_first(d, a + i, rest), load_first(d, b + i, rest)), d, out + i, rest);
  }
}

// Sum of f(d, x[i]) over i below n in one fixed order: 4 vectors of partial sums, then their lanes. f must give 0 for 0
// (the last vector is filled up with zeros).
template <class T, class F>
HWY_INLINE T sum_of(const T* x, std::int64_t n, F&& f) {
  const Tag<T> d;
  const std::int64_t lanes = std::int64_t(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, f(d, hn::LoadU(d, x + i)));
    s1 = hn::Add(s1, f(d, hn::LoadU(d, x + i + lanes)));
    s2 = hn::Add(s2, f(d, hn::LoadU(d, x + i + 2 * lanes)));
    s3 = hn::Add(s3, f(d, hn::LoadU(d, x + i + 3 * lanes)));
  }
  for (; i < n; i += lanes) s0 = hn::Add(s0, f(d, load_first(d, x + i, std::size_t(n - i))));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

}  // namespace refrain::simd
