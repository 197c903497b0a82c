// Layer norm, forward and rebuild. x is read once: a row lies in the registers of a warp, or of a block when it is wide, for the
// two passes of its statistics and for its output. X, O and W are the types of x, out and the parameters; arithmetic is in
// T = accumulator<X>.
#include <refrain/kernels/common/cuda/rows.cuh>
#include <refrain/kernels/norm/dtypes.cuh>
#include <refrain/kernels/norm/norm.h>

namespace refrain {

namespace norm_kernels {

using namespace cuda;
using cuda::accumulator;

template <class X, class O, class W>
struct LayerNormRows {
  using T = accumulator<X>;
  static constexpr int kPack = 16 / int(sizeof(X));
  const X* x;
  const W *weight, *bias;
  O* out;
  T *mean, *rstd;  // written by forward, read by rebuild
  T eps;
  std::int64_t rows;
  int channels;
  bool has_packs;
};

// The one place that says how an output is made: forward and rebuild give the same bits.
template <class X, class O, class W, class T, class Layout, int K>
__device__ __forceinline__ void store_normalized(const LayerNormRows<X, O, W>& a, const Layout& layout, O* out, int slot,
                                                 const Group<X, K>& x, T mean, T rstd) {
  Group<W, K> weight, bias;
  if (a.weight) weight = layout.load(a.weight, slot);
  if (a.bias) bias = layout.load(a.bias, slot);
  Group<O, K> y;
#pragma unroll
  for (int j = 0; j < K; ++j) {
    T value = (widen(x[j]) - mean) * rstd;
    if (a.weight && a.bias) value = fused(value, T(widen(weight[j])), T(widen(bias[j])));
    else if (a.weight) value = value * T(widen(weight[j]));
    else if (a.bias) value = value + T(widen(bias[j]));
    y[j] = narrow<O>(value);
  }
  layout.store(out, slot, y);
}

template <class X, class O, class W, int kThreads, int kRows>
__global__ void __launch_bounds__(kThreads* kRows) layer_norm_forward(LayerNormRows<X, O, W> a) {
  using T = accumulator<X>;
  constexpr int K = LayerNormRows<X, O, W>::kPack, kSlots = kKept<T, kThreads> / K, kWarps = kThreads / kWarp;
  REFRAIN_SHARED(T, shared, [3][kWarps]);
  const std::int64_t r = std::int64_t(blockIdx.x) * kRows + threadIdx.x / kThreads;
  if (r >= a.rows) return;
  const RowLayout<kThreads, K> layout(a.channels, a.has_packs);
  const X* x = a.x + r * a.channels;
  const T count = T(a.channels > 0 ? a.channels : 1);  // an empty row: mean 0, variance 0

  Group<X, K> kept[kSlots];
  T sum = 0;
  const auto add = [&](const Group<X, K>& group) {
#pragma unroll
    for (int j = 0; j < K; ++j) sum += widen(group[j]);
  };
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (!layout.has_slot(s)) continue;
    kept[s] = layout.load(x, s);
    add(kept[s]);
  }
  if constexpr (kThreads > kWarp) layout.template for_rest<kSlots>([&](int s) { add(layout.load(x, s)); });
  const T first_mean = row_reduce<kThreads, Add>(sum, shared[0]) / count;

  // The deviations' own mean makes up for the rounding of the first mean, which matters when |mean| >> std.
  T deviation = 0, square = 0;
  const auto add_deviations = [&](int s, const Group<X, K>& group) {
#pragma unroll
    for (int j = 0; j < K; ++j) {
      const T difference = layout.holds(s, j) ? widen(group[j]) - first_mean : T(0);
      deviation += difference;
      square = fused(difference, difference, square);
    }
  };
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (layout.has_slot(s)) add_deviations(s, kept[s]);
  }
  if constexpr (kThreads > kWarp) layout.template for_rest<kSlots>([&](int s) { add_deviations(s, layout.load(x, s)); });
  const T correction = row_reduce<kThreads, Add>(deviation, shared[1]) / count;
  const T variance = row_reduce<kThreads, Add>(square, shared[2]) / count - correction * correction;
  const T mean = first_mean + correction;
  const T rstd = T(1) / root((variance < T(0) ? T(0) : variance) + a.eps);

  if (threadIdx.x % kThreads == 0) {
    if (a.mean) a.mean[r] = mean;
    if (a.rstd) a.rstd[r] = rstd;
  }
  if (!a.out) return;
  O* out = a.out + r * a.channels;
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (layout.has_slot(s)) store_normalized(a, layout, out, s, kept[s], mean, rstd);
  }
  if constexpr (kThreads > kWarp)
    layout.template for_rest<kSlots>([&](int s) { store_normalized(a, layout, out, s, layout.load(x, s), mean, rstd); });
}

inline constexpr int kRebuildRows = 8;  // a warp each, of kRebuildSpan columns; blocks in y share a row
template <class X> inline constexpr int kRebuildSlots = kKept<accumulator<X>, kWarp> / (16 / int(sizeof(X)));

template <class X, class O, class W>
__global__ void __launch_bounds__(kWarp* kRebuildRows) layer_norm_rebuild(LayerNormRows<X, O, W> a) {
  constexpr int K = LayerNormRows<X, O, W>::kPack, kSlots = kRebuildSlots<X>;
  const std::int64_t r = std::int64_t(blockIdx.x) * kRebuildRows + threadIdx.x / kWarp;
  if (r >= a.rows) return;
  const RowLayout<kWarp, K> layout(a.channels, a.has_packs);
  const auto mean = a.mean[r], rstd = a.rstd[r];
#pragma unroll
  for (int i = 0; i < kSlots; ++i) {
    const int s = int(blockIdx.y) * kSlots + i;
    if (layout.has_slot(s))
      store_normalized(a, layout, a.out + r * a.channels, s, layout.load(a.x + r * a.channels, s), mean, rstd);
  }
}

template <class X, class O, class W, class K>
LayerNormRows<X, O, W> rows_of(const K& k) {
  using T = accumulator<X>;
  LayerNormRows<X, O, W> a{};
  constexpr int kPack = LayerNormRows<X, O, W>::kPack;
  a.x = data_of<X>(k.x);
  a.weight = data_of<W>(k.weight);
  a.bias = data_of<W>(k.bias);
  a.out = data_of<O>(k.out);
  // Rebuild only reads them.
  a.mean = const_cast<T*>(data_of<T>(k.mean));
  a.rstd = const_cast<T*>(data_of<T>(k.rstd));
  a.channels = checked_width(k.x.dim(-1), K::name);
  a.rows = a.channels ? k.x.numel() / a.channels : k.mean.numel();
  a.has_packs = is_aligned(a.x, kPackBytes<X, kPack>) && is_aligned(a.out, kPackBytes<O, kPack>) &&
                is_aligned(a.weight, kPackBytes<W, kPack>) && is_aligned(a.bias, kPackBytes<W, kPack>);
  return a;
}

}  // namespace norm_kernels

void run(Cuda device, const LayerNormForward& k) {
  if (!k.out.has_bytes() && !k.mean.has_bytes() && !k.rstd.has_bytes()) return;
  norm_dtypes::dispatch_on_device(k, k.out.dtype(), [&]<class X, class O, class W>() {
    using T = cuda::accumulator<X>;
    auto a = norm_kernels::rows_of<X, O, W>(k);
    a.eps = T(k.eps);
    cuda::choose_threads<T>(a.channels, [&](auto threads) {
      constexpr int kThreads = threads, kRows = kThreads == cuda::kWarp ? 4 : 1;
      cuda::launch(k.name, norm_kernels::layer_norm_forward<X, O, W, kThreads, kRows>,
                   {.grid = dim3(unsigned(cuda::ceil_div(a.rows, kRows))), .block = dim3(kThreads * kRows)}, device, a);
    });
  });
}

void run(Cuda device, const LayerNormRebuild& k) {
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  norm_dtypes::dispatch_on_device(k, k.out.dtype(), [&]<class X, class O, class W>() {
    const auto a = norm_kernels::rows_of<X, O, W>(k);
    constexpr int kColumns = cuda::kWarp * cuda::kKept<cuda::accumulator<X>, cuda::kWarp>;
    cuda::launch(k.name, norm_kernels::layer_norm_rebuild<X, O, W>,
                 {.grid = dim3(unsigned(cuda::ceil_div(a.rows, norm_kernels::kRebuildRows)),
                               unsigned(cuda::ceil_div(a.channels, kColumns))),
                  .block = dim3(cuda::kWarp * norm_kernels::kRebuildRows)},
                 device, a);
  });
}

}  // namespace refrain
