// Softmax and log-softmax, forward and backward. Over the last dim a line is a row that lies in the registers of a warp or a
// block: it is read once. Over another dim neighbouring lines lie side by side, one a thread. S is the type of the tensors;
// arithmetic is in T = accumulator<S>.
#include <refrain/kernels/common/cuda/rows.cuh>
#include <refrain/kernels/softmax/softmax.h>

namespace refrain {

namespace softmax_kernels {

using namespace cuda;
using cuda::accumulator;

// [outer, length, inner]: the line (o, i) has its elements `inner` apart.
struct Lines {
  std::int64_t outer = 1, length, inner = 1;
  Lines(const Shape& shape, int dim) : length(shape[dim]) {
    for (int i = 0; i < dim; ++i) outer *= shape[i];
    for (int i = dim + 1; i < shape.size(); ++i) inner *= shape[i];
  }
};

template <class S> inline constexpr int kPack = 16 / int(sizeof(S));
inline constexpr int kColumnThreads = 128;

template <class S, int kThreads, int kRows>
__global__ void __launch_bounds__(kThreads* kRows)
    softmax_rows(const S* x_rows, S* out_rows, std::int64_t rows, int length, bool is_log, bool has_packs) {
  using T = accumulator<S>;
  constexpr int K = kPack<S>, kSlots = kKept<T, kThreads> / K;
  REFRAIN_SHARED(T, shared, [2][kThreads / kWarp]);
  const std::int64_t r = std::int64_t(blockIdx.x) * kRows + threadIdx.x / kThreads;
  if (r >= rows) return;
  const RowLayout<kThreads, K> layout(length, has_packs);
  const S* x = x_rows + r * length;
  S* out = out_rows + r * length;
  const S lowest = narrow<S>(minus_infinity<T>());

  Group<T, K> kept[kSlots];
  T maximum = minus_infinity<T>();
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (!layout.has_slot(s)) continue;
    const Group<S, K> group = layout.load(x, s, lowest);
#pragma unroll
    for (int j = 0; j < K; ++j) {
      kept[s][j] = widen(group[j]);
      maximum = Larger{}(maximum, kept[s][j]);
    }
  }
  if constexpr (kThreads > kWarp) {
    layout.template for_rest<kSlots>([&](int s) {
      const Group<S, K> group = layout.load(x, s, lowest);
#pragma unroll
      for (int j = 0; j < K; ++j) maximum = Larger{}(maximum, T(widen(group[j])));
    });
  }
  maximum = row_reduce<kThreads, Larger>(maximum, shared[0]);
  // Nothing to subtract from a row of -inf: exp gives zeros.
  if (maximum == minus_infinity<T>()) maximum = T(0);

  T sum = 0;  // exp of what stands past the end, -inf, is 0
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (!layout.has_slot(s)) continue;
#pragma unroll
    for (int j = 0; j < K; ++j) {
      const T difference = kept[s][j] - maximum, e = exp_nonpositive(difference);
      kept[s][j] = is_log ? difference : e;
      sum += e;
    }
  }
  if constexpr (kThreads > kWarp) {
    layout.template for_rest<kSlots>([&](int s) {
      const Group<S, K> group = layout.load(x, s, lowest);
#pragma unroll
      for (int j = 0; j < K; ++j) sum += exp_nonpositive(T(widen(group[j])) - maximum);
    });
  }
  sum = row_reduce<kThreads, Add>(sum, shared[1]);
  const T scale = sum == T(0) ? T(0) : T(1) / sum, log_sum = !is_log || sum == T(0) ? T(0) : logarithm(sum);
  const auto result = [&](T value) { return narrow<S>(is_log ? value - log_sum : value * scale); };
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (!layout.has_slot(s)) continue;
    Group<S, K> y;
#pragma unroll
    for (int j = 0; j < K; ++j) y[j] = result(kept[s][j]);
    layout.store(out, s, y);
  }
  if constexpr (kThreads > kWarp) {
    layout.template for_rest<kSlots>([&](int s) {
      Group<S, K> group = layout.load(x, s, lowest);
#pragma unroll
      for (int j = 0; j < K; ++j) {
        const T difference = T(widen(group[j])) - maximum;
        group[j] = result(is_log ? difference : exp_nonpositive(difference));
      }
      layout.store(out, s, group);
    });
  }
}

template <class T>
__device__ __forceinline__ T gradient(T y, T g, T sum, bool is_log) {
  return is_log ? fused(-exp_nonpositive(y), sum, g) : y * (g - sum);
}

template <class S, int kThreads, int kRows>
__global__ void __launch_bounds__(kThreads* kRows)
    softmax_rows_backward(const S* y_rows, const S* grad_out_rows, S* grad_x_rows, std::int64_t rows, int length, bool is_log,
                          bool has_packs) {
  using T = accumulator<S>;
  constexpr int K = kPack<S>, kSlots = kKept<T, kThreads> / K;
  REFRAIN_SHARED(T, shared, [kThreads / kWarp]);
  const std::int64_t r = std::int64_t(blockIdx.x) * kRows + threadIdx.x / kThreads;
  if (r >= rows) return;
  const RowLayout<kThreads, K> layout(length, has_packs);
  const S *y = y_rows + r * length, *grad_out = grad_out_rows + r * length;
  Group<S, K> ys[kSlots], gs[kSlots];
  T sum = 0;
  const auto add = [&](const Group<S, K>& y_group, const Group<S, K>& g_group) {
#pragma unroll
    for (int j = 0; j < K; ++j) {
      const T g = widen(g_group[j]);
      sum = is_log ? sum + g : fused(g, T(widen(y_group[j])), sum);
    }
  };
  const auto store = [&](int s, const Group<S, K>& y_group, const Group<S, K>& g_group) {
    Group<S, K> grad_x;
#pragma unroll
    for (int j = 0; j < K; ++j) grad_x[j] = narrow<S>(gradient(T(widen(y_group[j])), T(widen(g_group[j])), sum, is_log));
    layout.store(grad_x_rows + r * length, s, grad_x);
  };
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (!layout.has_slot(s)) continue;
    ys[s] = layout.load(y, s);
    gs[s] = layout.load(grad_out, s);
    add(ys[s], gs[s]);
  }
  if constexpr (kThreads > kWarp)
    layout.template for_rest<kSlots>([&](int s) { add(layout.load(y, s), layout.load(grad_out, s)); });
  sum = row_reduce<kThreads, Add>(sum, shared);
#pragma unroll
  for (int s = 0; s < kSlots; ++s) {
    if (layout.has_slot(s)) store(s, ys[s], gs[s]);
  }
  if constexpr (kThreads > kWarp)
    layout.template for_rest<kSlots>([&](int s) { store(s, layout.load(y, s), layout.load(grad_out, s)); });
}

template <class S>
__global__ void __launch_bounds__(kColumnThreads) softmax_columns(const S* x, S* out, Lines lines, bool is_log) {
  using T = accumulator<S>;
  const std::int64_t line = std::int64_t(blockIdx.x) * kColumnThreads + threadIdx.x;
  if (line >= lines.outer * lines.inner) return;
  const std::int64_t first = line / lines.inner * lines.length * lines.inner + line % lines.inner;
  T maximum = minus_infinity<T>();
  for (std::int64_t j = 0, i = first; j < lines.length; ++j, i += lines.inner) maximum = Larger{}(maximum, T(widen(x[i])));
  if (maximum == minus_infinity<T>()) maximum = T(0);
  T sum = 0;
  for (std::int64_t j = 0, i = first; j < lines.length; ++j, i += lines.inner) sum += exp_nonpositive(T(widen(x[i])) - maximum);
  const T scale = sum == T(0) ? T(0) : T(1) / sum, log_sum = !is_log || sum == T(0) ? T(0) : logarithm(sum);
  for (std::int64_t j = 0, i = first; j < lines.length; ++j, i += lines.inner) {
    const T difference = T(widen(x[i])) - maximum;
    out[i] = narrow<S>(is_log ? difference - log_sum : exp_nonpositive(difference) * scale);
  }
}

template <class S>
__global__ void __launch_bounds__(kColumnThreads)
    softmax_columns_backward(const S* y, const S* grad_out, S* grad_x, Lines lines, bool is_log) {
  using T = accumulator<S>;
  const std::int64_t line = std::int64_t(blockIdx.x) * kColumnThreads + threadIdx.x;
  if (line >= lines.outer * lines.inner) return;
  const std::int64_t first = line / lines.inner * lines.length * lines.inner + line % lines.inner;
  T sum = 0;
  for (std::int64_t j = 0, i = first; j < lines.length; ++j, i += lines.inner) {
    const T g = widen(grad_out[i]);
    sum = is_log ? sum + g : fused(g, T(widen(y[i])), sum);
  }
  for (std::int64_t j = 0, i = first; j < lines.length; ++j, i += lines.inner)
    grad_x[i] = narrow<S>(gradient(T(widen(y[i])), T(widen(grad_out[i])), sum, is_log));
}

inline dim3 column_blocks(const Lines& lines) { return dim3(unsigned(ceil_div(lines.outer * lines.inner, kColumnThreads))); }

}  // namespace softmax_kernels

void run(Cuda device, const SoftmaxForward& k) {
  using namespace cuda;
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  const softmax_kernels::Lines lines(k.x.shape(), k.dim);
  cuda::dispatch_floating(k.x.dtype(), k.name, [&](auto zero) {
    using S = decltype(zero);
    const S* x = data_of<S>(k.x);
    S* out = data_of<S>(k.out);
    if (lines.inner != 1) {
      return launch(k.name, softmax_kernels::softmax_columns<S>,
                    {.grid = softmax_kernels::column_blocks(lines), .block = dim3(softmax_kernels::kColumnThreads)}, device, x,
                    out, lines, k.is_log);
    }
    const int length = checked_width(lines.length, k.name);
    choose_threads<cuda::accumulator<S>>(length, [&](auto threads) {
      constexpr int kThreads = threads, kRows = kThreads == kWarp ? 4 : 1;
      launch(k.name, softmax_kernels::softmax_rows<S, kThreads, kRows>,
             {.grid = dim3(unsigned(ceil_div(lines.outer, kRows))), .block = dim3(kThreads * kRows)}, device, x, out, lines.outer,
             length, k.is_log, is_aligned(x, 16) && is_aligned(out, 16));
    });
  });
}

void run(Cuda device, const SoftmaxBackward& k) {
  using namespace cuda;
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  const softmax_kernels::Lines lines(k.y.shape(), k.dim);
  cuda::dispatch_floating(k.y.dtype(), k.name, [&](auto zero) {
    using S = decltype(zero);
    const S *y = data_of<S>(k.y), *grad_out = data_of<S>(k.grad_out);
    S* grad_x = data_of<S>(k.out);
    if (lines.inner != 1) {
      return launch(k.name, softmax_kernels::softmax_columns_backward<S>,
                    {.grid = softmax_kernels::column_blocks(lines), .block = dim3(softmax_kernels::kColumnThreads)}, device, y,
                    grad_out, grad_x, lines, k.is_log);
    }
    const int length = checked_width(lines.length, k.name);
    choose_threads<cuda::accumulator<S>>(length, [&](auto threads) {
      constexpr int kThreads = threads, kRows = kThreads == kWarp ? 4 : 1;
      launch(k.name, softmax_kernels::softmax_rows_backward<S, kThreads, kRows>,
             {.grid = dim3(unsigned(ceil_div(lines.outer, kRows))), .block = dim3(kThreads * kRows)}, device, y, grad_out, grad_x,
             lines.outer, length, k.is_log, is_aligned(y, 16) && is_aligned(grad_out, 16) && is_aligned(grad_x, 16));
    });
  });
}

}  // namespace refrain
