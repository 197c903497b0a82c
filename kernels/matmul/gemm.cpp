// Tiling of gemm(). The builtin kernel gives every element of C the same bits in any tile. oneDNN's and Eigen's sums per row do not depend on which rows share a call as long as a call has
// 24, 48 … 192 rows (from 193 on oneDNN blocks k differently; an incomplete block of rows takes other kernels). So
// tiles hold at most 192 rows, and the rows left over by 24 are computed as part of a block of 24 that is put aside.
#include <refrain/kernels/matmul/gemm.h>

#include <refrain/core/check.h>
#include <refrain/core/parallel.h>
#include <refrain/kernels/matmul/gemm_engine.h>

#include <algorithm>
#include <vector>

namespace refrain {

namespace {

constexpr std::int64_t kRowUnit = 24;
constexpr std::int64_t kMaxTileRows = 192;
constexpr std::int64_t kTileCols = 384;
// The builtin kernel sets no bounds; a tile is wide enough to use a row of A often, and high enough to pay for packing B.
constexpr std::int64_t kBuiltinCols = 192;
constexpr std::int64_t kBuiltinRowUnit = 84;  // whole micro tiles of 14 or 6 rows
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
  Tiling(std::int64_t m, std::int64_t n, std::int64_t k, bool split_k, bool is_builtin) {
    if (is_builtin) {
      tile_cols = kBuiltinCols;
      cols = ceil_div(n, tile_cols);
      const double flops = 2.0 * double(m) * double(std::min(n, tile_cols)) * double(k);
      const std::int64_t wanted = std::min(ceil_div(kWantedTiles, cols), std::int64_t(flops / kPieceFlops) + 1);
      tile_rows = ceil_div(ceil_div(m, wanted), kBuiltinRowUnit) * kBuiltinRowUnit;
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
  std::int64_t tile_rows = kMaxTileRows, tile_cols;
  std::int64_t rows, cols;           // tiles along m and n
  std::int64_t chunk, chunks = 1;    // pieces along k
  std::int64_t tiles() const { return rows * cols; }
};

// Never by m: a row's bits must not depend on how many there are. oneDNN's kernels are up to a fifth faster, above all
// where A is transposed; for the smallest weights its calls cost more than they gain, and the builtin kernel wins.
// Without oneDNN, and in f64, the builtin kernel is ahead of Eigen.
template <class T>
GemmEngine chosen_engine(const GemmArgs<T>& args) {
  if (args.engine != GemmEngine::automatic) return args.engine;
  const bool suits_onednn = args.split_k || args.n * args.k > 64 * 64;
  return sizeof(T) == 4 && has_onednn() && suits_onednn ? GemmEngine::onednn : GemmEngine::builtin;
}

bool is_builtin(GemmEngine engine) { return engine == GemmEngine::builtin; }

void run_library(GemmEngine engine, const detail::TileCall<float>& call) {
  if (engine == GemmEngine::onednn) detail::onednn_tile(call);
  else detail::eigen_tile(call);
}

void run_library(GemmEngine, const detail::TileCall<double>& call) { detail::eigen_tile(call); }

template <class T>
const T* element(const GemmOperand<T>& operand, std::int64_t row, std::int64_t col) {
  return operand.data + (operand.transposed ? col * operand.ld + row : row * operand.ld + col);
}

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

struct Range {
  std::int64_t begin, end;
  std::int64_t size() const { return end - begin; }
};

// The block i x j of op(A)[:, p] op(B)[p, :], to be put at c.
template <class T>
detail::TileCall<T> block_of(const GemmArgs<T>& args, Range i, Range j, Range p, T beta, T* c, std::int64_t ldc) {
  return {.m = i.size(), .n = j.size(), .k = p.size(), .alpha = args.alpha,
          .a = {element(args.a, i.begin, p.begin), args.a.ld, args.a.transposed},
          .b = {element(args.b, p.begin, j.begin), args.b.ld, args.b.transposed},
          .beta = beta, .c = c, .ldc = ldc};
}

// A block by a library.
template <class T>
void multiply_block(const GemmArgs<T>& args, Range i, Range j, Range p, T beta, T* c, std::int64_t ldc) {
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

template <class T>
void scale_block(T* c, std::int64_t ldc, std::int64_t m, std::int64_t n, T beta) {
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == T(0) ? T(0) : beta * c[i * ldc + j];
  }
}

// One tile and one chunk of k; chunk 0 goes to C, the others to the scratch.
template <class T>
void run_tile(const GemmArgs<T>& args, const Tiling& tiling, std::int64_t tile, std::int64_t chunk) {
  const std::int64_t tile_row = tile / tiling.cols, tile_col = tile % tiling.cols;
  const Range i{tile_row * tiling.tile_rows, std::min(args.m, (tile_row + 1) * tiling.tile_rows)};
  const Range j{tile_col * tiling.tile_cols, std::min(args.n, (tile_col + 1) * tiling.tile_cols)};
  const Range p{chunk * tiling.chunk, std::min(args.k, (chunk + 1) * tiling.chunk)};
  T* partial = chunk == 0 ? nullptr : args.scratch + (chunk - 1) * (args.m * args.n + args.m);
  T* c = chunk == 0 ? args.c : partial;
  const std::int64_t ldc = chunk == 0 ? args.ldc : args.n;
  c += i.begin * ldc + j.begin;
  T beta = chunk == 0 ? args.beta : T(0);
  const T* bias = args.bias ? args.bias + j.begin : nullptr;

  if (args.alpha == T(0) || args.k == 0) {
    scale_block(c, ldc, i.size(), j.size(), beta);
  } else if (is_builtin(args.engine)) {
    const T* start = beta == T(0) ? bias : nullptr;
    detail::builtin_tile(block_of(args, i, j, p, beta, c, ldc), start);
    if (start) bias = nullptr;
  } else {
    for (std::int64_t begin = p.begin; begin < p.end; begin += kMaxDepth) {
      multiply_block(args, i, j, {begin, std::min(p.end, begin + kMaxDepth)}, beta, c, ldc);
      beta = T(1);
    }
  }
  if (args.a_row_sums && tile_col == 0) {
    T* sums = chunk == 0 ? args.a_row_sums : partial + args.m * args.n;
    detail::column_sums(element(args.a, i.begin, p.begin), args.a.ld, p.size(), i.size(), sums + i.begin);
  }
  if (bias || args.activation != Activation::none || args.pre_activation) {
    T* pre = args.pre_activation ? args.pre_activation + i.begin * ldc + j.begin : nullptr;
    detail::apply_epilogue(c, pre, ldc, i.size(), j.size(), bias, args.activation);
  }
}

template <class T>
void add_partials(const GemmArgs<T>& args, const Tiling& tiling) {
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

template <class T>
void check_args(const GemmArgs<T>& args) {
  check(args.engine != GemmEngine::onednn || (has_onednn() && sizeof(T) == 4), "gemm: ",
        has_onednn() ? "oneDNN has no f64 products" : "this build has no oneDNN");
  check(args.m >= 0 && args.n >= 0 && args.k >= 0, "gemm: expected extents >= 0, got ", args.m, " x ", args.n, " x ", args.k);
  check_operand("A", args.a, args.m, args.k);
  check_operand("B", args.b, args.k, args.n);
  check(args.ldc >= args.n, "gemm: leading dimension of C must be at least ", args.n, ", got ", args.ldc);
  check(!args.a_row_sums || (args.a.transposed && args.split_k), "gemm: row sums of A need A to be transposed, and split_k");
  check(!args.split_k || (!args.bias && args.activation == Activation::none && !args.pre_activation), "gemm: split_k excludes an epilogue");
}

}  // namespace

std::int64_t gemm_scratch_size(std::int64_t m, std::int64_t n, std::int64_t k) {
  if (m == 0 || n == 0 || k == 0) return 0;
  // Whichever engine wants more.
  return (std::max(Tiling(m, n, k, true, true).chunks, Tiling(m, n, k, true, false).chunks) - 1) * (m * n + m);
}

template <class T>
void gemm(const GemmArgs<T>& wanted) {
  if (!wanted.split_k) {
    gemm_batch<T>(1, [&](std::int64_t) { return wanted; });
    return;
  }
  check_args(wanted);
  GemmArgs<T> args = wanted;
  args.engine = chosen_engine(wanted);
  if (args.m == 0) return;
  if (args.n == 0) {
    if (args.a_row_sums) detail::column_sums(args.a.data, args.a.ld, args.k, args.m, args.a_row_sums);
    return;
  }
  const Tiling tiling(args.m, args.n, args.k, true, is_builtin(args.engine));
  check(tiling.chunks == 1 || args.scratch, "gemm: split_k of ", args.m, " x ", args.n, " x ", args.k, " needs scratch");
  parallel_pieces(tiling.tiles() * tiling.chunks,
                  [&](std::int64_t piece) { run_tile(args, tiling, piece % tiling.tiles(), piece / tiling.tiles()); });
  if (tiling.chunks > 1) add_partials(args, tiling);
}

template <class T>
void detail::gemm_batch(std::int64_t count, GemmArgs<T> (*get)(const void* context, std::int64_t i), const void* context) {
  if (count == 0) return;
  const GemmArgs<T> first = get(context, 0);
  check_args(first);
  if (first.m == 0 || first.n == 0) return;
  const GemmEngine engine = chosen_engine(first);
  const Tiling tiling(first.m, first.n, first.k, false, is_builtin(engine));
  const double flops = 2.0 * double(std::min(first.m, tiling.tile_rows)) * double(std::min(first.n, tiling.tile_cols)) * double(first.k);
  const std::int64_t grain = std::max<std::int64_t>(1, std::int64_t(kPieceFlops / (flops + 1000.0)));
  parallel_for(count * tiling.tiles(), grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      GemmArgs<T> args = get(context, t / tiling.tiles());
      args.engine = engine;
      run_tile(args, tiling, t % tiling.tiles(), 0);
    }
  });
}

template void gemm(const GemmArgs<float>&);
template void gemm(const GemmArgs<double>&);
template void detail::gemm_batch(std::int64_t, GemmArgs<float> (*)(const void*, std::int64_t), const void*);
template void detail::gemm_batch(std::int64_t, GemmArgs<double> (*)(const void*, std::int64_t), const void*);

}  // namespace refrain
