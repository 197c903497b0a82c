#include <refrain/kernels/attention/tile_product.h>
#include <refrain/kernels/common/simd.h>

#include <algorithm>
#include <array>
#include <utility>

namespace refrain::attention_tiles {

namespace {

namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;
template <class T>
inline constexpr int kLanes = int(hn::MaxLanes(Tag<T>()));

// AVX-512 and NEON have 32 vector registers, AVX2 and SSE 16: sums, one row of B and one broadcast must fit.
inline constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM;
inline constexpr int kMaxVectors = kManyRegisters ? 4 : 3;

// Rows of C held in registers, for a panel of `vectors`. Products in f64 only serve gradient checks: few variants.
template <class T>
constexpr int max_rows(int vectors, bool has_tail) {
  if (sizeof(T) == 8 || has_tail) return kManyRegisters || vectors < 3 ? 4 : 3;
  constexpr int many[] = {0, 14, 12, 8, 6}, few[] = {0, 10, 6, 4};
  return kManyRegisters ? many[vectors] : few[std::min(vectors, 3)];
}

template <class T>
struct Operands {
  const T* a;
  std::int64_t lda;
  const T* b;
  std::int64_t ldb;
  T* c;
  std::int64_t ldc;
  std::int64_t k;
  std::size_t tail;  // lanes of the last vector that belong to the panel
  bool accumulate;
};

template <TileLayout kLayout>
constexpr std::int64_t row_step(std::int64_t lda) {
  return kLayout == TileLayout::rows ? lda : kLayout == TileLayout::tile ? kTileStride : 1;
}

template <TileLayout kLayout, int kRows, int kVectors, bool kTail, class T>
void micro(const Operands<T>& o) {
  const Tag<T> d;
  using V = hn::Vec<Tag<T>>;
  const std::int64_t row = row_step<kLayout>(o.lda);
  constexpr std::int64_t inner = kLayout == TileLayout::transposed ? kTileStride : 1;
  const auto load = [&](const T* p, int v) HWY_ATTR {
    return kTail && v == kVectors - 1 ? simd::load_first(d, p + v * kLanes<T>, o.tail) : hn::LoadU(d, p + v * kLanes<T>);
  };

  V sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::Zero(d);
  }
  const T* a = o.a;
  const T* b = o.b;
  for (std::int64_t p = 0; p < o.k; ++p, a += inner, b += o.ldb) {
    V bv[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) bv[v] = load(b, v);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const V av = hn::Set(d, a[r * row]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = hn::MulAdd(av, bv[v], sum[r][v]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    T* c = o.c + r * o.ldc;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const V value = o.accumulate ? hn::Add(load(c, v), sum[r][v]) : sum[r][v];
      if (kTail && v == kVectors - 1)
        simd::store_first(value, d, c + v * kLanes<T>, o.tail);
      else
        hn::StoreU(value, d, c + v * kLanes<T>);
    }
  }
}

template <TileLayout kLayout, int kVectors, bool kTail, class T>
void panel(std::int64_t m, Operands<T> o) {
  constexpr int most = max_rows<T>(kVectors, kTail);
  static constexpr auto variants = []<int... i>(std::integer_sequence<int, i...>) {
    return std::array{&micro<kLayout, i + 1, kVectors, kTail, T>...};
  }
  (std::make_integer_sequence<int, most>());
  // Groups of nearly equal height: a last group of one or two rows would wait for its own sums.
  const std::int64_t groups = (m + most - 1) / most;
  const std::int64_t height = m / groups, taller = m % groups;
  for (std::int64_t g = 0; g < groups; ++g) {
    const std::int64_t rows = height + (g < taller);
    variants[std::size_t(rows - 1)](o);
    o.a += rows * row_step<kLayout>(o.lda);
    o.c += rows * o.ldc;
  }
}

template <TileLayout kLayout, bool kTail, class T>
void panel_of(int vectors, std::int64_t m, const Operands<T>& o) {
  switch (vectors) {
    case 1: return panel<kLayout, 1, kTail>(m, o);
    case 2: return panel<kLayout, 2, kTail>(m, o);
    case 3: return panel<kLayout, 3, kTail>(m, o);
    default: return panel<kLayout, kMaxVectors, kTail>(m, o);
  }
}

}  // namespace

template <TileLayout kLayout, class T>
void tile_product(std::int64_t m, std::int64_t n, std::int64_t k, const T* a, std::int64_t lda, const T* b, std::int64_t ldb, T* c,
                  std::int64_t ldc, bool accumulate) {
  if (m <= 0) return;
  constexpr std::int64_t lanes = kLanes<T>;
  std::int64_t vectors = (n + lanes - 1) / lanes;
  const std::size_t tail = std::size_t(n - (vectors - 1) * lanes);
  while (vectors > 0) {
    // A rest of one vector is better shared with its neighbour.
    const std::int64_t width = vectors <= kMaxVectors ? vectors : vectors < 2 * kMaxVectors ? (vectors + 1) / 2 : kMaxVectors;
    vectors -= width;
    const Operands<T> o{a, lda, b, ldb, c, ldc, k, tail, accumulate};
    if (vectors == 0 && tail < std::size_t(lanes))
      panel_of<kLayout, true>(int(width), m, o);
    else
      panel_of<kLayout, false>(int(width), m, o);
    b += width * lanes;
    c += width * lanes;
  }
}

#define REFRAIN_TILE_PRODUCT(layout, T)                                                                                               \
  template void tile_product<layout, T>(std::int64_t, std::int64_t, std::int64_t, const T*, std::int64_t, const T*, std::int64_t, T*, \
                                        std::int64_t, bool);
REFRAIN_TILE_PRODUCT(TileLayout::rows, float)
REFRAIN_TILE_PRODUCT(TileLayout::tile, float)
REFRAIN_TILE_PRODUCT(TileLayout::transposed, float)
REFRAIN_TILE_PRODUCT(TileLayout::rows, double)
REFRAIN_TILE_PRODUCT(TileLayout::tile, double)
REFRAIN_TILE_PRODUCT(TileLayout::transposed, double)
#undef REFRAIN_TILE_PRODUCT

}  // namespace refrain::attention_tiles
