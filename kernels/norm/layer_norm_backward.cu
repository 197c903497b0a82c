// Layer norm, backward: grad_x and the parameters' partial sums in one pass over the rows. A block has a piece of rows; its
// threads keep their columns' sums in registers from row to row and leave them in the scratch. A second kernel adds the pieces
// in a fixed order. No atomics: the same bits in every run.
#include <refrain/kernels/common/cuda/rows.cuh>
#include <refrain/kernels/norm/dtypes.cuh>
#include <refrain/kernels/norm/norm.h>

namespace refrain {

namespace norm_kernels {

using namespace cuda;
using cuda::accumulator;

template <class X, class O, class W>
struct LayerNormGradients {
  using T = accumulator<X>;
  static constexpr int kPack = 16 / int(sizeof(X));
  const O* grad_out;
  const X* x;
  const T *mean, *rstd;
  const W* weight;
  X* grad_x;
  T* scratch;  // [pieces, 2, C]: sums for the weight, then for the bias; null when no parameter gradient is wanted
  std::int64_t rows, rows_per_block;
  int channels;
  bool has_packs;
};

// Adds both values over a row's threads. A row of one warp does without `slots`; others have them for themselves until the
// next barrier.
template <int kThreads, class T>
__device__ __forceinline__ void row_sums(T& a, T& b, T (&slots)[2][kThreads / kWarp]) {
  a = warp_reduce<Add>(a);
  b = warp_reduce<Add>(b);
  if constexpr (kThreads > kWarp) {
    if (threadIdx.x % kWarp == 0) {
      slots[0][threadIdx.x / kWarp] = a;
      slots[1][threadIdx.x / kWarp] = b;
    }
    __syncthreads();
    a = slots[0][0];
    b = slots[1][0];
#pragma unroll
    for (int warp = 1; warp < kThreads / kWarp; ++warp) {
      a += slots[0][warp];
      b += slots[1][warp];
    }
  }
}

// Rows at once in a block whose rows are warps: with more of them what a lane keeps does not fit into registers.
inline constexpr int kBackwardRows = 8;

// A row: grad_x = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = grad_out * weight.
template <class X, class O, class W, int kThreads, int kRows>
__global__ void __launch_bounds__(kThreads* kRows) layer_norm_backward(LayerNormGradients<X, O, W> a) {
  using T = accumulator<X>;
  constexpr int K = LayerNormGradients<X, O, W>::kPack, kSlots = kKept<T, kThreads> / K, kWarps = kThreads / kWarp;
  REFRAIN_SHARED(T, slots, [2][2][kWarps]);  // in turns, so that a row needs one barrier
  const RowLayout<kThreads, K> layout(a.channels, a.has_packs);
  const std::int64_t begin = blockIdx.x * a.rows_per_block;
  const std::int64_t end = begin + a.rows_per_block < a.rows ? begin + a.rows_per_block : a.rows;
  T* const scratch = a.scratch ? a.scratch + std::int64_t(blockIdx.x) * 2 * a.channels : nullptr;
  Group<T, K> sum_weight[kSlots], sum_bias[kSlots];
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
#pragma unroll
    for (int j = 0; j < K; ++j) sum_weight[s][j] = sum_bias[s][j] = T(0);
  }
  int turn = 0;
  for (std::int64_t r = begin + threadIdx.x / kThreads; r < end; r += kRows, turn ^= 1) {
    const O* grad_out = a.grad_out + r * a.channels;
    const X* x = a.x + r * a.channels;
    const T mean = a.mean[r], rstd = a.rstd[r];
    Group<X, K> xs[kSlots];
    Group<O, K> gs[kSlots];
    T sum_g = 0, sum_gx = 0;
    // Past the row's end grad_out is 0, and so is all that it is a factor of.
    const auto add = [&](int s, const Group<X, K>& x_group, const Group<O, K>& g_group, Group<T, K>& for_weight,
                         Group<T, K>& for_bias) {
      Group<W, K> weight;
      if (a.weight) weight = layout.load(a.weight, s);
#pragma unroll
      for (int j = 0; j < K; ++j) {
        const T dy = T(widen(g_group[j])), xhat = (widen(x_group[j]) - mean) * rstd;
        const T g = a.weight ? dy * T(widen(weight[j])) : dy;
        sum_g += g;
        sum_gx = fused(g, xhat, sum_gx);
        for_weight[j] = fused(dy, xhat, for_weight[j]);
        for_bias[j] += dy;
      }
    };
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      if (!layout.has_slot(s)) continue;
      xs[s] = layout.load(x, s);
      gs[s] = layout.load(grad_out, s);
      add(s, xs[s], gs[s], sum_weight[s], sum_bias[s]);
    }
    // Columns beyond those that fit into registers have their sums in the scratch, each touched by its thread alone.
    if constexpr (kThreads > kWarp) {
      layout.template for_rest<kSlots>([&](int s) {
        Group<T, K> for_weight, for_bias;
        if (scratch && r != begin) {
          for_weight = layout.load_single(scratch, s);
          for_bias = layout.load_single(scratch + a.channels, s);
        } else {
#pragma unroll
          for (int j = 0; j < K; ++j) for_weight[j] = for_bias[j] = T(0);
        }
        add(s, layout.load(x, s), layout.load(grad_out, s), for_weight, for_bias);
        if (!scratch) return;
        layout.store_single(scratch, s, for_weight);
        layout.store_single(scratch + a.channels, s, for_bias);
      });
    }
    if (!a.grad_x) continue;
    row_sums<kThreads>(sum_g, sum_gx, slots[turn]);
    const T mean_g = sum_g / T(a.channels), mean_gx = sum_gx / T(a.channels);
    const auto store = [&](int s, const Group<X, K>& x_group, const Group<O, K>& g_group) {
      Group<W, K> weight;
      if (a.weight) weight = layout.load(a.weight, s);
      Group<X, K> grad_x;
#pragma unroll
      for (int j = 0; j < K; ++j) {
        const T dy = T(widen(g_group[j])), xhat = (widen(x_group[j]) - mean) * rstd;
        const T g = a.weight ? dy * T(widen(weight[j])) : dy;
        grad_x[j] = narrow<X>(rstd * fused(-xhat, mean_gx, g - mean_g));
      }
      layout.store(a.grad_x + r * a.channels, s, grad_x);
    };
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      if (layout.has_slot(s)) store(s, xs[s], gs[s]);
    }
    if constexpr (kThreads > kWarp)
      layout.template for_rest<kSlots>([&](int s) { store(s, layout.load(x, s), layout.load(grad_out, s)); });
  }
  if (!scratch) return;
  if constexpr (kRows > 1) {
    // The rows' warps add their sums one after the other.
    constexpr int kColumns = kThreads * K * kSlots;
    REFRAIN_SHARED(T, sums, [2][kColumns]);
    const int mine = int(threadIdx.x / kThreads), thread = int(threadIdx.x % kThreads);
    for (int turn_of = 0; turn_of < kRows; ++turn_of) {
      if (mine == turn_of) {
#pragma unroll
        for (int s = 0; s < kSlots; ++s) {
          if (!layout.has_slot(s)) continue;
#pragma unroll
          for (int j = 0; j < K; ++j) {
            const int at = (s * K + j) * kThreads + thread;  // its own place, whatever its column
            sums[0][at] = turn_of == 0 ? sum_weight[s][j] : sums[0][at] + sum_weight[s][j];
            sums[1][at] = turn_of == 0 ? sum_bias[s][j] : sums[1][at] + sum_bias[s][j];
          }
        }
      }
      __syncthreads();
    }
    if (mine != 0) return;
#pragma unroll
    for (int s = 0; s < kSlots; ++s) {
      if (!layout.has_slot(s)) continue;
#pragma unroll
      for (int j = 0; j < K; ++j) {
        sum_weight[s][j] = sums[0][(s * K + j) * kThreads + thread];
        sum_bias[s][j] = sums[1][(s * K + j) * kThreads + thread];
      }
    }
  }
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (!layout.has_slot(s)) continue;
    layout.store_single(scratch, s, sum_weight[s]);
    layout.store_single(scratch + a.channels, s, sum_bias[s]);
  }
}

// Adds the pieces of 32 columns and rounds once; y chooses the weight or the bias. A warp adds a run of pieces in their order,
// then the warps' sums are added in theirs.
template <class W, class T>
__global__ void __launch_bounds__(256)
    layer_norm_add_pieces(const T* scratch, W* grad_weight, W* grad_bias, int pieces, int channels) {
  constexpr int kWarps = 256 / kWarp;
  REFRAIN_SHARED(T, sums, [kWarps][kWarp]);
  W* out = blockIdx.y == 0 ? grad_weight : grad_bias;
  if (!out) return;
  const int lane = int(threadIdx.x) % kWarp, warp = int(threadIdx.x) / kWarp, column = int(blockIdx.x) * kWarp + lane;
  const int run = (pieces + kWarps - 1) / kWarps, begin = warp * run, end = begin + run < pieces ? begin + run : pieces;
  const bool is_mine = column < channels;
  T sum = 0;
  if (is_mine) {
#pragma unroll 4
    for (int p = begin; p < end; ++p) sum += scratch[(std::int64_t(p) * 2 + blockIdx.y) * channels + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || !is_mine) return;
#pragma unroll
  for (int w = 1; w < kWarps; ++w) sum += sums[w][lane];
  out[column] = narrow<W>(sum);
}

}  // namespace norm_kernels

void run(Cuda device, const LayerNormBackward& k) {
  using namespace cuda;
  const bool sums_parameters = k.grad_weight.has_bytes() || k.grad_bias.has_bytes();
  if ((!k.out.has_bytes() && !sums_parameters) || k.x.dim(-1) == 0) return;
  norm_dtypes::dispatch_on_device(k, k.grad_out.dtype(), [&]<class X, class O, class W>() {
    using T = cuda::accumulator<X>;
    using Arguments = norm_kernels::LayerNormGradients<X, O, W>;
    constexpr int kPack = Arguments::kPack;
    const int channels = checked_width(k.x.dim(-1), k.name);
    const std::int64_t rows = k.mean.numel();
    Arguments a{.grad_out = data_of<O>(k.grad_out),
                .x = data_of<X>(k.x),
                .mean = data_of<T>(k.mean),
                .rstd = data_of<T>(k.rstd),
                .weight = data_of<W>(k.weight),
                .grad_x = data_of<X>(k.out),
                .scratch = sums_parameters ? data_of<T>(k.scratch) : nullptr,
                .rows = rows,
                .rows_per_block = 0,
                .channels = channels,
                .has_packs = false};
    a.has_packs = is_aligned(a.grad_out, kPackBytes<O, kPack>) && is_aligned(a.x, kPackBytes<X, kPack>) &&
                  is_aligned(a.grad_x, kPackBytes<X, kPack>) && is_aligned(a.weight, kPackBytes<W, kPack>);
    const std::int64_t piece = LayerNormBackward::rows_per_piece(DeviceKind::cuda, rows, channels);
    choose_threads<T>(channels, [&](auto threads) {
      constexpr int kThreads = threads, kRows = kThreads == kWarp ? norm_kernels::kBackwardRows : 1;
      a.rows_per_block = sums_parameters ? piece : kRows;
      launch(k.name, norm_kernels::layer_norm_backward<X, O, W, kThreads, kRows>,
             {.grid = dim3(unsigned(ceil_div(rows, a.rows_per_block))), .block = dim3(kThreads * kRows)}, device, a);
    });
    if (!sums_parameters) return;
    launch(k.name, norm_kernels::layer_norm_add_pieces<W, T>,
           {.grid = dim3(unsigned(ceil_div(channels, kWarp)), 2), .block = dim3(256)}, device, a.scratch,
           data_of<W>(k.grad_weight), data_of<W>(k.grad_bias), int(ceil_div(rows, piece)), channels);
  });
}

}  // namespace refrain
