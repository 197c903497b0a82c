// Tiling of gemm(). The builtin kernel gives every element of C the same bits in any tile. oneDNN's and Eigen's sums per
// row do not depend on which rows share a call as long as a call has 24, 48 … 192 rows (from 193 on oneDNN blocks k
// differently; an incomplete block of rows takes other kernels). So tiles hold at most 192 rows, and the rows left over by
// 24 are computed as part of a block of 24 that is put aside.
#include <refrain/kernels/matmul/gemm.h>

#include <refrain/core/check.h>
#include <refrain/core/parallel.h>
#include <refrain/kernels/matmul/gemm_engine.h>

#include <algorithm>
#include <vector>

namespace refrain {

using detail::block_of, detail::element, detail::Range;

namespace {

constexpr std::int64_t kRowUnit = 24;
constexpr std::int64_t kLibraryRows = 192;
constexpr std::int64_t kTileCols = detail::kMaxTileCols;
// The builtin kernel sets no bounds; a tile is wide enough to use a row of A often, and high enough to pay for packing B.
constexpr std::int64_t kBuiltinCols = 192;
constexpr std::int64_t kBuiltinRowUnit = 84;  // whole micro tiles of 14 or 6 rows
constexpr std::int64_t kAmxRowUnit = 32;
constexpr double kAmxPieceFlops = 1e7;
// A tile sums over k in steps of this size: it bounds the buffer that pads products of fewer than 24 rows.
constexpr std::int64_t kMaxDepth = 4096;
// Tiles below this many operations share a piece: waking a thread costs some microseconds.
constexpr double kPieceFlops = 1e6;
constexpr std::int64_t kWantedTiles = 8;
constexpr std::int64_t kMinSplitDepth = 512;
constexpr std::int64_t kMaxSplitOutput = 128 * 1024;

constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// How a product of these extents is cut. The height of tiles leaves no trace in the bits, their width and the depth
// of chunks do; none depends on the number of threads.
struct Tiling {
  Tiling(std::int64_t m, std::int64_t n, std::int64_t k, bool split_k, GemmEngine engine, bool is_half, bool is_a_transposed) {
    if (engine == GemmEngine::amx) {
      // Chunks as for the builtin kernel: they decide how much scratch there is.
      *this = Tiling(m, n, k, split_k, GemmEngine::builtin, is_half, is_a_transposed);
      // Packing B costs as much as a hundred rows of products, packing a transposed A as much as two hundred columns.
      tile_cols = is_a_transposed ? detail::kMaxTileCols : kBuiltinCols;
      cols = ceil_div(n, tile_cols);
      const double flops = 2.0 * double(m) * double(std::min(n, tile_cols)) * double(k);
      const std::int64_t most = ceil_div(is_a_transposed ? kWantedTiles / 2 : kWantedTiles, cols * chunks);
      const std::int64_t wanted = std::min(most, std::int64_t(flops / kAmxPieceFlops) + 1);
      tile_rows = std::min(ceil_div(ceil_div(m, wanted), kAmxRowUnit) * kAmxRowUnit, detail::kMaxTileSums / tile_cols);
      rows = ceil_div(m, tile_rows);
      return;
    }
    if (engine == GemmEngine::builtin) {
      tile_cols = kBuiltinCols;
      cols = ceil_div(n, tile_cols);
      const double flops = 2.0 * double(m) * double(std::min(n, tile_cols)) * double(k);
      const std::int64_t wanted = std::min(ceil_div(kWantedTiles, cols), std::int64_t(flops / kPieceFlops) + 1);
      tile_rows = ceil_div(ceil_div(m, wanted), kBuiltinRowUnit) * kBuiltinRowUnit;
      if (is_half) tile_rows = std::min(tile_rows, detail::kMaxTileSums / kBuiltinCols / kBuiltinRowUnit * kBuiltinRowUnit);
    } else {
      tile_cols = kTileCols;
      cols = ceil_div(n, tile_cols);
      while (tile_rows > kRowUnit * 2 && ceil_div(m, tile_rows) * cols < kWantedTiles &&
             2.0 * double(tile_rows * std::min(n, tile_cols)) * double(k) > 8 * kPieceFlops) {
        tile_rows /= 2;
      }
    }
    rows = ceil_div(m, tile_rows);
    if (split_k && rows * cols < kWantedTiles && m * n <= kMaxSplitOutput && k >= 2 * kMinSplitDepth) {
      const std::int64_t wanted = std::min(k / kMinSplitDepth, ceil_div(kWantedTiles, rows * cols));
      chunk = ceil_div(ceil_div(k, wanted), 8) * 8;
      chunks = ceil_div(k, chunk);
    } else {
      chunk = k;
    }
  }
  std::int64_t tile_rows = kLibraryRows, tile_cols;
  std::int64_t rows, cols;           // tiles along m and n
  std::int64_t chunk, chunks = 1;    // pieces along k
  std::int64_t tiles() const { return rows * cols; }
};

// Never by m: a row's bits must not depend on how many there are. oneDNN's kernels are up to a fifth faster, above all
// where A is transposed; for the smallest weights its calls cost more than they gain, and the builtin kernel wins.
// Without oneDNN, and in f64, the builtin kernel is ahead of Eigen. bf16 goes to AMX where that is: three to five times as
// fast as f32, and ahead for small products too.
template <class S, class C>
GemmEngine chosen_engine(const GemmArgs<S, C>& args) {
  if (args.engine != GemmEngine::automatic) return args.engine;
  if (std::is_same_v<S, bf16> && has_amx()) return GemmEngine::amx;
  const bool suits_onednn = args.split_k || args.n * args.k > 64 * 64;
  return !std::is_same_v<S, double> && has_onednn() && suits_onednn ? GemmEngine::onednn : GemmEngine::builtin;
}

void run_library(GemmEngine engine, const detail::TileCall<float>& call) {
  if (engine == GemmEngine::onednn) detail::onednn_tile(call);
  else detail::eigen_tile(call);
}

void run_library(GemmEngine, const detail::TileCall<double>& call) { detail::eigen_tile(call); }

// Rows of op(A) copied into a block of 24, zeros below. Only products of fewer than 24 rows come here. The buffer is
// the thread's own, at most 24 x kMaxDepth elements.
template <class T>
GemmOperand<T> padded_rows(const GemmOperand<T>& a, std::int64_t rows, std::int64_t k) {
  thread_local std::vector<T> buffer;
  if (std::int64_t(buffer.size()) < kRowUnit * k) buffer.resize(std::size_t(kRowUnit * k));
  if (a.transposed) {
    for (std::int64_t p = 0; p < k; ++p) {
      T* to = std::copy_n(a.data + p * a.ld, rows, buffer.data() + p * kRowUnit);
      std::fill_n(to, kRowUnit - rows, T(0));
    }
    return {buffer.data(), kRowUnit, true};
  }
  for (std::int64_t i = 0; i < rows; ++i) std::copy_n(a.data + i * a.ld, k, buffer.data() + i * k);
  std::fill_n(buffer.data() + rows * k, (kRowUnit - rows) * k, T(0));
  return {buffer.data(), k, false};
}

}  // namespace

template <class T>
void detail::library_block(const GemmArgs<T>& args, Range i, Range j, Range p, T beta, T* c, std::int64_t ldc) {
  detail::TileCall<T> call = block_of(args, i, j, p, beta, c, ldc);
  // With split_k rows are no batch: their bits need not be their own.
  if (!args.split_k) call.m = call.m / kRowUnit * kRowUnit;
  if (call.m > 0) run_library(args.engine, call);
  const std::int64_t rest = i.size() - call.m;
  if (rest == 0) return;

  T block[kRowUnit * kTileCols];
  T* c_rest = c + call.m * ldc;
  T* mine = block;  // where the wanted rows lie in the block
  if (args.m >= kRowUnit) {
    call.a.data = element(args.a, i.end - kRowUnit, p.begin);
    mine = block + (kRowUnit - rest) * call.n;
  } else {
    call.a = padded_rows(call.a, rest, call.k);
  }
  if (beta != T(0)) {
    std::fill_n(block, kRowUnit * call.n, T(0));
    for (std::int64_t r = 0; r < rest; ++r) std::copy_n(c_rest + r * ldc, call.n, mine + r * call.n);
  }
  call.m = kRowUnit;
  call.c = block;
  call.ldc = call.n;
  run_library(args.engine, call);
  for (std::int64_t r = 0; r < rest; ++r) std::copy_n(mine + r * call.n, call.n, c_rest + r * ldc);
}

template void detail::library_block(const GemmArgs<float>&, Range, Range, Range, float, float*, std::int64_t);
template void detail::library_block(const GemmArgs<double>&, Range, Range, Range, double, double*, std::int64_t);

namespace {

template <class T>
void scale_block(T* c, std::int64_t ldc, std::int64_t m, std::int64_t n, T beta) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == T(0) ? T(0) : beta * c[i * ldc + j];
  }
}

// Chunk 0 of k goes to C where that is of the sums' type, the others to the scratch, which starts with this chunk.
template <class C>
constexpr std::int64_t kFirstPartial = is_half<C> ? 0 : 1;

template <class T>
void wide_tile(const GemmArgs<T>& args, Range i, Range j, Range p, T* partial) {
  T* c = partial ? partial : args.c;
  const std::int64_t ldc = partial ? args.n : args.ldc;
  c += i.begin * ldc + j.begin;
  T beta = partial ? T(0) : args.beta;
  const T* bias = args.bias ? args.bias.narrow() + j.begin : nullptr;

  if (args.alpha == T(0) || args.k == 0) {
    scale_block(c, ldc, i.size(), j.size(), beta);
  } else if (args.engine == GemmEngine::builtin) {
    const T* start = beta == T(0) ? bias : nullptr;
    detail::builtin_tile(block_of(args, i, j, p, beta, c, ldc), start);
    if (start) bias = nullptr;
  } else {
    for (std::int64_t begin = p.begin; begin < p.end; begin += kMaxDepth) {
      detail::library_block(args, i, j, {begin, std::min(p.end, begin + kMaxDepth)}, beta, c, ldc);
      beta = T(1);
    }
  }
  if (args.a_row_sums && j.begin == 0) {
    T* sums = partial ? partial + args.m * args.n : args.a_row_sums;
    detail::column_sums(element(args.a, i.begin, p.begin), args.a.ld, p.size(), i.size(), sums + i.begin);
  }
  if (bias || args.row_bias || args.activation != Activation::none || args.pre_activation) {
    T* pre = args.pre_activation ? args.pre_activation + i.begin * ldc + j.begin : nullptr;
    const T* row_bias = args.row_bias ? args.row_bias.narrow() + i.begin : nullptr;
    detail::apply_epilogue(c, pre, ldc, i.size(), j.size(), bias, row_bias, args.activation);
  }
}

// One tile and one chunk of k.
template <class S, class C>
void run_tile(const GemmArgs<S, C>& args, const Tiling& tiling, std::int64_t tile, std::int64_t chunk) {
  const std::int64_t tile_row = tile / tiling.cols, tile_col = tile % tiling.cols;
  const Range i{tile_row * tiling.tile_rows, std::min(args.m, (tile_row + 1) * tiling.tile_rows)};
  const Range j{tile_col * tiling.tile_cols, std::min(args.n, (tile_col + 1) * tiling.tile_cols)};
  const Range p{chunk * tiling.chunk, std::min(args.k, (chunk + 1) * tiling.chunk)};
  const bool is_partial = tiling.chunks > 1 && chunk >= kFirstPartial<C>;
  auto* partial = is_partial ? args.scratch + (chunk - kFirstPartial<C>) * (args.m * args.n + args.m) : nullptr;
  if constexpr (is_half<S>) detail::half_tile(args, i, j, p, partial);
  else wide_tile(args, i, j, p, partial);
}

// Sums that C cannot hold: all partials into the first, which is then rounded.
template <class S, class C>
  requires is_half<C>
void add_partials(const GemmArgs<S, C>& args, const Tiling& tiling) {
  parallel_for(args.m, std::max<std::int64_t>(1, 65536 / (args.n * tiling.chunks)), [&](std::int64_t begin, std::int64_t end) {
    float* sums = args.scratch + begin * args.n;
    float* row_sums = args.scratch + args.m * args.n;
    for (std::int64_t chunk = 1; chunk < tiling.chunks; ++chunk) {
      const std::int64_t offset = chunk * (args.m * args.n + args.m);
      for (std::int64_t j = 0; j < (end - begin) * args.n; ++j) sums[j] += sums[offset + j];
      for (std::int64_t i = begin; i < end; ++i) row_sums[i] += row_sums[offset + i];
    }
    detail::finish_tile(detail::Finish<C>{.alpha = 1, .beta = args.beta, .bias = nullptr, .row_bias = nullptr, .activation = Activation::none,
                                          .c = args.c + begin * args.ldc, .pre = nullptr, .ldc = args.ldc},
                        sums, args.n, end - begin, args.n);
    for (std::int64_t i = begin; args.a_row_sums && i < end; ++i) args.a_row_sums[i] = C(row_sums[i]);
  });
}

template <class S, class T>
void add_partials(const GemmArgs<S, T>& args, const Tiling& tiling) {
  parallel_for(args.m, std::max<std::int64_t>(1, 65536 / (args.n * tiling.chunks)), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t chunk = 1; chunk < tiling.chunks; ++chunk) {
      const T* partial = args.scratch + (chunk - 1) * (args.m * args.n + args.m);
      for (std::int64_t i = begin; i < end; ++i) {
        T* c = args.c + i * args.ldc;
        const T* from = partial + i * args.n;
        for (std::int64_t j = 0; j < args.n; ++j) c[j] += from[j];
        if (args.a_row_sums) args.a_row_sums[i] += partial[args.m * args.n + i];
      }
    }
  });
}

template <class T>
void check_operand(const char* name, const GemmOperand<T>& operand, std::int64_t rows, std::int64_t cols) {
  const std::int64_t width = std::max<std::int64_t>(1, operand.transposed ? rows : cols);
  check(operand.ld >= width, "gemm: leading dimension of ", name, " must be at least ", width, ", got ", operand.ld);
}

template <class S, class C>
void check_args(const GemmArgs<S, C>& args) {
  check(args.engine < GemmEngine::cublaslt, "gemm: an engine of CUDA was asked for on the CPU");
  check(args.engine != GemmEngine::onednn || (has_onednn() && !std::is_same_v<S, double>), "gemm: ",
        has_onednn() ? "oneDNN has no f64 products" : "this build has no oneDNN");
  check(args.engine != GemmEngine::amx || (has_amx() && std::is_same_v<S, bf16>), "gemm: ",
        has_amx() ? "AMX has bf16 products only" : "AMX is not there, or not in this build");
  check(args.m >= 0 && args.n >= 0 && args.k >= 0, "gemm: expected extents >= 0, got ", args.m, " x ", args.n, " x ", args.k);
  check_operand("A", args.a, args.m, args.k);
  check_operand("B", args.b, args.k, args.n);
  check(args.ldc >= args.n, "gemm: leading dimension of C must be at least ", args.n, ", got ", args.ldc);
  check(!args.a_row_sums || (args.a.transposed && args.split_k), "gemm: row sums of A need A to be transposed, and split_k");
  check(!args.split_k || (!args.bias && !args.row_bias && args.activation == Activation::none && !args.pre_activation), "gemm: split_k excludes an epilogue");
}

}  // namespace

std::int64_t gemm_scratch_size(std::int64_t m, std::int64_t n, std::int64_t k, DType c) {
  if (m == 0 || n == 0 || k == 0) return 0;
  // Whichever engine wants more; tiles of 16-bit operands are never more or larger chunks.
  const std::int64_t chunks = std::max(Tiling(m, n, k, true, GemmEngine::builtin, false, true).chunks, Tiling(m, n, k, true, GemmEngine::onednn, false, true).chunks);
  return chunks == 1 ? 0 : (chunks - (is_16_bit(c) ? 0 : 1)) * (m * n + m);
}

template <class S, class C>
void gemm(const GemmArgs<S, C>& wanted) {
  if (!wanted.split_k) {
    gemm_batch<S, C>(1, [&](std::int64_t) { return wanted; });
    return;
  }
  check_args(wanted);
  GemmArgs<S, C> args = wanted;
  args.engine = chosen_engine(wanted);
  if (args.m == 0) return;
  if (args.n == 0) {
    if (args.a_row_sums) detail::column_sums(args.a.data, args.a.ld, args.k, args.m, args.a_row_sums);
    return;
  }
  const Tiling tiling(args.m, args.n, args.k, true, args.engine, is_half<S>, args.a.transposed);
  check(tiling.chunks == 1 || args.scratch, "gemm: split_k of ", args.m, " x ", args.n, " x ", args.k, " needs scratch");
  parallel_pieces(tiling.tiles() * tiling.chunks,
                  [&](std::int64_t piece) { run_tile(args, tiling, piece % tiling.tiles(), piece / tiling.tiles()); });
  if (tiling.chunks > 1) add_partials(args, tiling);
}

template <class S, class C>
void detail::gemm_batch(std::int64_t count, GemmArgs<S, C> (*get)(const void* context, std::int64_t i), const void* context) {
  if (count == 0) return;
  const GemmArgs<S, C> first = get(context, 0);
  check_args(first);
  if (first.m == 0 || first.n == 0) return;
  const GemmEngine engine = chosen_engine(first);
  const Tiling tiling(first.m, first.n, first.k, false, engine, is_half<S>, first.a.transposed);
  const double flops = 2.0 * double(std::min(first.m, tiling.tile_rows)) * double(std::min(first.n, tiling.tile_cols)) * double(first.k);
  const std::int64_t grain = std::max<std::int64_t>(1, std::int64_t(kPieceFlops / (flops + 1000.0)));
  parallel_for(count * tiling.tiles(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      GemmArgs<S, C> args = get(context, t / tiling.tiles());
      args.engine = engine;
      run_tile(args, tiling, t % tiling.tiles(), 0);
    }
  });
}

template void gemm(const GemmArgs<float>&);
template void gemm(const GemmArgs<double>&);
template void gemm(const GemmArgs<f16>&);
template void gemm(const GemmArgs<bf16>&);
template void gemm(const GemmArgs<f16, float>&);
template void gemm(const GemmArgs<bf16, float>&);
template void detail::gemm_batch(std::int64_t, GemmArgs<float> (*)(const void*, std::int64_t), const void*);
template void detail::gemm_batch(std::int64_t, GemmArgs<double> (*)(const void*, std::int64_t), const void*);
template void detail::gemm_batch(std::int64_t, GemmArgs<f16> (*)(const void*, std::int64_t), const void*);
template void detail::gemm_batch(std::int64_t, GemmArgs<bf16> (*)(const void*, std::int64_t), const void*);
template void detail::gemm_batch(std::int64_t, GemmArgs<f16, float> (*)(const void*, std::int64_t), const void*);
template void detail::gemm_batch(std::int64_t, GemmArgs<bf16, float> (*)(const void*, std::int64_t), const void*);

}  // namespace refrain
