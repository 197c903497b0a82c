// Vectors of the build's target (static dispatch of Google Highway): partial loads and stores, and loops whose last,
// shorter vector goes through the same arithmetic as the others. f16 and bf16 are widened to f32 lanes as they are loaded
// and rounded to nearest, ties to even, as they are stored. For .cpp files of the kernels room only.
#pragma once

#include <refrain/core/dtype.h>

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

// All lanes from p, as f32. The 16-bit formats are exact in f32, and none of their subnormals is flushed here.
template <class D>
HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* HWY_RESTRICT p) {
  return hn::LoadU(d, p);
}

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const bf16* HWY_RESTRICT p) {
  const hn::Repartition<std::uint32_t, D> d32;
  const hn::Rebind<std::uint16_t, D> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, reinterpret_cast<const std::uint16_t*>(p)))));
}

template <class D>
HWY_INLINE hn::Vec<D> load([[maybe_unused]] D d, const f16* HWY_RESTRICT p) {
#if defined(__F16C__) || defined(__AVX512F__)
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(p)));
#else
  HWY_ALIGN float buffer[hn::MaxLanes(D())];
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) buffer[i] = float(p[i]);
  return hn::Load(d, buffer);
#endif
}

template <class D>
HWY_INLINE void store(hn::Vec<D> v, D d, hn::TFromD<D>* HWY_RESTRICT p) {
  hn::StoreU(v, d, p);
}

// In integers: the processors' own conversion to bf16 flushes subnormals.
template <class D>
HWY_INLINE void store(hn::Vec<D> v, [[maybe_unused]] D d, bf16* HWY_RESTRICT p) {
  const hn::Repartition<std::uint32_t, D> d32;
  const hn::Rebind<std::uint16_t, D> d16;
  const auto bits = hn::BitCast(d32, v), upper = hn::ShiftRight<16>(bits);
  const auto rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(hn::Set(d32, 0x7fffu), hn::And(upper, hn::Set(d32, 1u)))));
  const auto is_nan = hn::Gt(hn::And(bits, hn::Set(d32, 0x7fffffffu)), hn::Set(d32, 0x7f800000u));
  const auto result = hn::IfThenElse(is_nan, hn::Or(upper, hn::Set(d32, 0x40u)), rounded);
  hn::StoreU(hn::TruncateTo(d16, result), d16, reinterpret_cast<std::uint16_t*>(p));
}

template <class D>
HWY_INLINE void store(hn::Vec<D> v, [[maybe_unused]] D d, f16* HWY_RESTRICT p) {
#if defined(__F16C__) || defined(__AVX512F__)
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, v), d16, reinterpret_cast<hwy::float16_t*>(p));
#else
  HWY_ALIGN float buffer[hn::MaxLanes(D())];
  hn::Store(v, d, buffer);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) p[i] = f16(buffer[i]);
#endif
}

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

template <class D, class S>
  requires is_half<S>
HWY_INLINE hn::Vec<D> load_first(D d, const S* HWY_RESTRICT p, std::size_t n) {
  if (n >= hn::Lanes(d)) return load(d, p);
  S buffer[hn::MaxLanes(D())] = {};
  std::memcpy(buffer, p, n * sizeof(S));
  return load(d, buffer);
}

template <class D, class S>
  requires is_half<S>
HWY_INLINE void store_first(hn::Vec<D> v, D d, S* HWY_RESTRICT p, std::size_t n) {
  if (n >= hn::Lanes(d)) return store(v, d, p);
  S buffer[hn::MaxLanes(D())];
  store(v, d, buffer);
  std::memcpy(p, buffer, n * sizeof(S));
}

// out[i] = f(d, x[i]) for i below n, f taking and returning vectors of the accumulator type. out may be x.
template <class X, class O, class F>
HWY_INLINE void map(const X* x, O* out, std::int64_t n, F&& f) {
  const Tag<accumulator_t<X>> d;
  const std::int64_t lanes = std::int64_t(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store(f(d, load(d, x + i)), d, out + i);
  if (i < n) store_first(f(d, load_first(d, x + i, std::size_t(n - i))), d, out + i, std::size_t(n - i));
}

// out[i] = x[i], widened, or rounded to nearest. f64 goes with f64 alone.
template <class X, class O>
HWY_INLINE void copy(const X* x, O* out, std::int64_t n) {
  map(x, out, n, [](auto, auto v) HWY_ATTR { return v; });
}

// out[i] = f(d, a[i], b[i]). out may be a or b.
template <class A, class B, class O, class F>
HWY_INLINE void map(const A* a, const B* b, O* out, std::int64_t n, F&& f) {
  const Tag<accumulator_t<A>> d;
  const std::int64_t lanes = std::int64_t(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) store(f(d, load(d, a + i), load(d, b + i)), d, out + i);
  if (i < n) {
    const std::size_t rest = std::size_t(n - i);
    store_first(f(d, load_first(d, a + i, rest), load_first(d, b + i, rest)), d, out + i, rest);
  }
}

// Sum of f(d, x[i]) over i below n in one fixed order: 4 vectors of partial sums, then their lanes. f must give 0 for 0
// (the last vector is filled up with zeros).
template <class X, class F>
HWY_INLINE accumulator_t<X> sum_of(const X* x, std::int64_t n, F&& f) {
  const Tag<accumulator_t<X>> d;
  const std::int64_t lanes = std::int64_t(hn::Lanes(d));
  auto s0 = hn::Zero(d), s1 = s0, s2 = s0, s3 = s0;
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 = hn::Add(s0, f(d, load(d, x + i)));
    s1 = hn::Add(s1, f(d, load(d, x + i + lanes)));
    s2 = hn::Add(s2, f(d, load(d, x + i + 2 * lanes)));
    s3 = hn::Add(s3, f(d, load(d, x + i + 3 * lanes)));
  }
  for (; i < n; i += lanes) s0 = hn::Add(s0, f(d, load_first(d, x + i, std::size_t(n - i))));
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
}

}  // namespace refrain::simd
