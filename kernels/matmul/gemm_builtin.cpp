// The engine's own product. 16-bit operands are widened to f32 as they are packed. Each element of C is a chain of fused multiply-adds over k, cut into steps
// whose length depends on k alone: its bits depend on its row of op(A), its column of op(B) and on k, on nothing else.
//
// A block of op(B) is packed into panels two vectors wide, then `kRows` rows of A at a time run along it; rows of A are
// read where they lie (the scheme of Goto and van de Geijn, "Anatomy of high-performance matrix multiplication", 2008,
// without packing A unless it is transposed or 16-bit).
#include <refrain/kernels/common/simd.h>
#include <refrain/kernels/matmul/gemm_engine.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace refrain::detail {

namespace {

namespace hn = simd::hn;

// Accumulators of a micro tile, rows x vectors: 8 x 3 of 32 registers (few loads for each multiply-add), 6 x 2 of 16.
constexpr bool kManyRegisters = HWY_TARGET <= HWY_AVX3 || HWY_ARCH_ARM;
constexpr std::int64_t kRows = kManyRegisters ? 8 : 6;
constexpr std::int64_t kPanelVectors = kManyRegisters ? 3 : 2;

// Width in vectors of the next panel when `left` vectors are left: 4 are two panels of 2 rather than 3 and 1.
constexpr std::int64_t panel_vectors(std::int64_t left) {
  return left == kPanelVectors + 1 ? 2 : left < kPanelVectors ? left : kPanelVectors;
}
constexpr std::int64_t kMaxDepth = 256;    // of a step along k: a panel and the rows that meet it fit the first-level cache
constexpr std::int64_t kMaxColumns = 192;  // of a packed block: at most 192 KiB (f32), for the second level

constexpr std::int64_t kMinColumnsToPackRows = 160;  // below, a transposed A is read where it lies
constexpr int kPrefetchSteps = 8;          // panels come from the second-level cache; a tenth faster than without

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// What becomes of a micro tile's sums.
template <class T>
struct Store {
  T alpha, beta;      // beta is 1 from the second step on
  const T* bias;      // or null; only with beta 0
  T* c;
  std::int64_t ldc;
  std::size_t cols;   // valid columns
};

// rows x (vectors * lanes) of C over one step of depth k. A's element (i, p) is a[i * row_step + p * col_step].
template <int rows, int vectors, class T>
void micro_tile(std::int64_t k, const T* HWY_RESTRICT a, std::int64_t row_step, std::int64_t col_step, const T* HWY_RESTRICT panel, const Store<T>& store) {
  const simd::Tag<T> d;
  using V = simd::Vector<T>;
  const std::size_t lanes = hn::Lanes(d);
  V sum[rows][vectors];
  for (auto& row : sum) {
    for (V& v : row) v = hn::Zero(d);
  }
  for (int i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < std::size_t(vectors) * lanes; j += 64 / sizeof(T)) __builtin_prefetch(store.c + i * store.ldc + j, 1);
  }
  for (std::int64_t p = 0; p < k; ++p) {
    V b[vectors];
    for (int v = 0; v < vectors; ++v) b[v] = hn::Load(d, panel + std::size_t(v) * lanes);
    for (int v = 0; v < vectors; ++v) __builtin_prefetch(panel + std::size_t(v + kPrefetchSteps * vectors) * lanes);
    for (int i = 0; i < rows; ++i) {
      const V x = hn::Set(d, a[i * row_step]);
      for (int v = 0; v < vectors; ++v) sum[i][v] = hn::MulAdd(x, b[v], sum[i][v]);
    }
    a += col_step;
    panel += std::size_t(vectors) * lanes;
  }
  const V alpha = hn::Set(d, store.alpha);
  // With all loops unrolled the sums stay in registers.
  const auto finish = [&](auto&& load, auto&& keep) HWY_ATTR {
    const bool reads_c = store.beta != T(0);
    const V beta = hn::Set(d, store.beta);
#pragma GCC unroll 16
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < vectors; ++v) {
        const std::size_t at = std::size_t(v) * lanes;
        T* c = store.c + i * store.ldc + at;
        V start = hn::Zero(d);
        if (reads_c) start = hn::Mul(beta, load(c, at));
        else if (store.bias) start = load(store.bias + at, at);
        keep(hn::MulAdd(alpha, sum[i][v], start), c, at);
      }
    }
  };
  if (store.cols == std::size_t(vectors) * lanes) {
    finish([&](const T* p, std::size_t) HWY_ATTR { return hn::LoadU(d, p); }, [&](V v, T* p, std::size_t) HWY_ATTR { hn::StoreU(v, d, p); });
  } else {
    finish([&](const T* p, std::size_t at) HWY_ATTR { return at < store.cols ? simd::load_first(d, p, store.cols - at) : hn::Zero(d); },
           [&](V v, T* p, std::size_t at) HWY_ATTR { if (at < store.cols) simd::store_first(v, d, p, store.cols - at); });
  }
}

template <class T>
using MicroTile = void (*)(std::int64_t, const T*, std::int64_t, std::int64_t, const T*, const Store<T>&);

// micro_tile for 1 … kRows rows.
template <int vectors, class T, int... i>
MicroTile<T> micro_tile_for(std::int64_t rows, std::integer_sequence<int, i...>) {
  static constexpr MicroTile<T> tiles[] = {micro_tile<i + 1, vectors, T>...};
  return tiles[rows - 1];
}

// The transpose of 4 x 4 floats (or 16-bit numbers, widened) or 2 x 2 doubles.
template <class S>
HWY_INLINE void transpose_block(const S* from, std::int64_t ld, float* to, std::int64_t width) {
  const hn::FixedTag<float, 4> d;
  const hn::FixedTag<double, 2> d2;
  const auto r0 = simd::load(d, from), r1 = simd::load(d, from + ld), r2 = simd::load(d, from + 2 * ld), r3 = simd::load(d, from + 3 * ld);
  const auto low01 = hn::BitCast(d2, hn::InterleaveLower(d, r0, r1)), low23 = hn::BitCast(d2, hn::InterleaveLower(d, r2, r3));
  const auto high01 = hn::BitCast(d2, hn::InterleaveUpper(d, r0, r1)), high23 = hn::BitCast(d2, hn::InterleaveUpper(d, r2, r3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, low01, low23)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, low01, low23)), d, to + width);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(d2, high01, high23)), d, to + 2 * width);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(d2, high01, high23)), d, to + 3 * width);
}

HWY_INLINE void transpose_block(const double* from, std::int64_t ld, double* to, std::int64_t width) {
  const hn::FixedTag<double, 2> d;
  const auto r0 = hn::LoadU(d, from), r1 = hn::LoadU(d, from + ld);
  hn::StoreU(hn::InterleaveLower(d, r0, r1), d, to);
  hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, to + width);
}

// to[p * width + j] = from[j * ld + p] for p < k, j < cols, zeros up to width.
template <class S, class T>
void pack_transposed(const S* from, std::int64_t ld, std::int64_t k, std::int64_t cols, T* to, std::int64_t width) {
  constexpr std::int64_t block = 16 / sizeof(T);
  const std::int64_t full_cols = cols / block * block, full_k = k / block * block;
  for (std::int64_t j = 0; j < full_cols; j += block) {
    for (std::int64_t p = 0; p < full_k; p += block) transpose_block(from + j * ld + p, ld, to + p * width + j, width);
    for (std::int64_t p = full_k; p < k; ++p) {
      for (std::int64_t i = j; i < j + block; ++i) to[p * width + i] = T(from[i * ld + p]);
    }
  }
  for (std::int64_t p = 0; p < k; ++p) {
    for (std::int64_t j = full_cols; j < cols; ++j) to[p * width + j] = T(from[j * ld + p]);
    std::fill(to + p * width + cols, to + (p + 1) * width, T(0));
  }
}

// to[p * width + j] = from[p * ld + j], zeros up to width, which is a whole number of vectors.
template <class S, class T>
void pack_straight(const S* from, std::int64_t ld, std::int64_t k, std::int64_t cols, T* to, std::int64_t width) {
  const simd::Tag<T> d;
  const std::int64_t lanes = std::int64_t(hn::Lanes(d));
  if (cols == width) {
    for (std::int64_t p = 0; p < k; ++p, from += ld, to += width) {
      for (std::int64_t j = 0; j < width; j += lanes) hn::Store(simd::load(d, from + j), d, to + j);
    }
    return;
  }
  for (std::int64_t p = 0; p < k; ++p, from += ld, to += width) {
    for (std::int64_t j = 0; j < width; j += lanes) hn::Store(simd::load_first(d, from + j, std::size_t(cols - j)), d, to + j);
  }
}

// Rows of a transposed A side by side: to[p * step + i] = from[p * ld + i]. Returns the step, a whole number of vectors.
// `readable` elements of each of A's lines exist from here on: whole loads are much faster.
template <class S, class T>
std::int64_t pack_rows(const S* from, std::int64_t ld, std::int64_t k, std::int64_t rows, std::int64_t readable, T* to) {
  const simd::Tag<T> d;
  const std::int64_t lanes = std::int64_t(hn::Lanes(d)), step = ceil_div(rows, lanes) * lanes;
  for (std::int64_t p = 0; p < k; ++p) {
    for (std::int64_t i = 0; i < rows; i += lanes) hn::StoreU(simd::load_first(d, from + p * ld + i, std::size_t(readable - i)), d, to + p * step + i);
  }
  return step;
}

// Rows of A widened: to[i * step + p] = from[i * ld + p]. Returns the step.
template <class S>
std::int64_t widen_rows(const S* from, std::int64_t ld, std::int64_t k, std::int64_t rows, float* to) {
  constexpr std::int64_t step = kMaxDepth + 16;  // rows that meet in a micro tile lie in different sets of the cache
  for (std::int64_t i = 0; i < rows; ++i) simd::copy(from + i * ld, to + i * step, k);
  return step;
}

template <class T>
struct Buffers {
  std::vector<T> b = std::vector<T>(std::size_t(kMaxDepth * (kMaxColumns + 64) + 64));
  std::vector<T> a = std::vector<T>(std::size_t(kMaxDepth * (kRows + 32)));
  // Panels start at whole cache lines.
  T* panels() {
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(b.data());
    return b.data() + ((64 - address % 64) % 64) / sizeof(T);
  }
};

template <class T>
MicroTile<T> micro_tile_for(std::int64_t vectors, std::int64_t rows) {
  constexpr auto all_rows = std::make_integer_sequence<int, int(kRows)>();
  if (vectors == 1) return micro_tile_for<1, T>(rows, all_rows);
  if (vectors == 2) return micro_tile_for<2, T>(rows, all_rows);
  return micro_tile_for<int(kPanelVectors), T>(rows, all_rows);
}

// One step along k of a block of at most kMaxColumns columns.
template <class S, class T = accumulator_t<S>>
void multiply_step(const TileCall<S>& call, T beta, const T* bias, Buffers<T>& buffers) {
  const std::int64_t lanes = std::int64_t(hn::Lanes(simd::Tag<T>())), k = call.k, num_vectors = ceil_div(call.n, lanes);
  T* panels = buffers.panels();
  for (std::int64_t v = 0; v < num_vectors;) {
    const std::int64_t width = panel_vectors(num_vectors - v) * lanes, j = v * lanes, cols = std::min(width, call.n - j);
    if (call.b.transposed) pack_transposed(call.b.data + j * call.b.ld, call.b.ld, k, cols, panels + j * k, width);
    else pack_straight(call.b.data + j, call.b.ld, k, cols, panels + j * k, width);
    v += width / lanes;
  }
  const bool packs_rows = call.a.transposed && (is_half<S> || call.n >= kMinColumnsToPackRows);
  for (std::int64_t i = 0; i < call.m; i += kRows) {
    const std::int64_t rows = std::min(kRows, call.m - i);
    const S* from = call.a.data + (call.a.transposed ? i : i * call.a.ld);
    std::int64_t row_step = call.a.transposed ? 1 : call.a.ld, col_step = call.a.transposed ? call.a.ld : 1;
    const T* a = buffers.a.data();
    if (packs_rows) col_step = pack_rows(from, call.a.ld, k, rows, call.m - i, buffers.a.data());
    else if constexpr (is_half<S>) row_step = widen_rows(from, call.a.ld, k, rows, buffers.a.data());
    else a = from;
    for (std::int64_t v = 0; v < num_vectors;) {
      const std::int64_t vectors = panel_vectors(num_vectors - v), j = v * lanes;
      const Store<T> store{.alpha = call.alpha, .beta = beta, .bias = bias ? bias + j : nullptr, .c = call.c + i * call.ldc + j, .ldc = call.ldc,
                           .cols = std::size_t(std::min(vectors * lanes, call.n - j))};
      micro_tile_for<T>(vectors, rows)(k, a, row_step, col_step, panels + j * k, store);
      v += vectors;
    }
  }
}

template <class S, class T = accumulator_t<S>>
void multiply(const TileCall<S>& call, const T* bias) {
  thread_local Buffers<T> buffers;
  const std::int64_t steps = ceil_div(call.k, kMaxDepth), depth = ceil_div(call.k, steps);
  for (std::int64_t j = 0; j < call.n; j += kMaxColumns) {
    for (std::int64_t p = 0; p < call.k; p += depth) {
      TileCall<S> step = call;
      step.n = std::min(kMaxColumns, call.n - j);
      step.k = std::min(depth, call.k - p);
      step.a.data += call.a.transposed ? p * call.a.ld : p;
      step.b.data += call.b.transposed ? j * call.b.ld + p : p * call.b.ld + j;
      step.c += j;
      multiply_step(step, p == 0 ? call.beta : T(1), p == 0 && bias ? bias + j : nullptr, buffers);
    }
  }
}

}  // namespace

void builtin_tile(const TileCall<float>& call, const float* bias) { multiply(call, bias); }
void builtin_tile(const TileCall<double>& call, const double* bias) { multiply(call, bias); }
void builtin_tile(const TileCall<f16>& call, const float* bias) { multiply(call, bias); }
void builtin_tile(const TileCall<bf16>& call, const float* bias) { multiply(call, bias); }

}  // namespace refrain::detail
