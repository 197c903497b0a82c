// Layer norm on the CPU: a row at a time, which stays in the first-level cache for all of its passes. X, O and W are the
// types of x, out and the parameters; arithmetic, statistics and sums are in T = accumulator_t<X>.
#include <refrain/core/parallel.h>
#include <refrain/kernels/common/simd_span.h>
#include <refrain/kernels/norm/dtypes.h>
#include <refrain/kernels/norm/norm.h>

#include <algorithm>
#include <cmath>

namespace refrain {

namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::for_vectors;
using simd::Sums;

constexpr std::int64_t kElementsPerPiece = 16384;

std::int64_t rows_per_piece(std::int64_t channels) { return std::max<std::int64_t>(1, kElementsPerPiece / std::max<std::int64_t>(channels, 1)); }

template <class T>
struct Statistics {
  T mean, rstd;
};

template <class X, class T = accumulator_t<X>>
Statistics<T> row_statistics(const X* x, std::int64_t channels, T eps) {
  const hn::ScalableTag<T> d;
  if (channels == 0) return {T(0), T(1) / std::sqrt(eps)};
  Sums<decltype(d), 4> sum(d);
  for_vectors<4>(d, channels, [&](auto k, std::int64_t i, auto lanes) HWY_ATTR { sum.part[k] = hn::Add(sum.part[k], lanes.load(d, x + i)); });
  const T first_mean = sum.total(d) / T(channels);
  // The deviations' own mean makes up for the rounding of the first mean, which matters when |mean| >> std.
  const auto shift = hn::Set(d, first_mean);
  Sums<decltype(d), 4> deviation(d), square(d);
  for_vectors<4>(d, channels, [&](auto k, std::int64_t i, auto lanes) HWY_ATTR {
    const auto difference = lanes.keep(d, hn::Sub(lanes.load(d, x + i), shift));
    deviation.part[k] = hn::Add(deviation.part[k], difference);
    square.part[k] = hn::MulAdd(difference, difference, square.part[k]);
  });
  const T correction = deviation.total(d) / T(channels);
  const T variance = square.total(d) / T(channels) - correction * correction;
  return {first_mean + correction, T(1) / std::sqrt((variance < 0 ? T(0) : variance) + eps)};
}

// The one place that says how an output is made: forward and rebuild give the same bits.
template <bool has_weight, bool has_bias, class X, class O, class W, class T = accumulator_t<X>>
void normalize_row(const X* x, Statistics<T> statistics, const W* weight, const W* bias, O* out, std::int64_t channels) {
  const hn::ScalableTag<T> d;
  const auto mean = hn::Set(d, statistics.mean), rstd = hn::Set(d, statistics.rstd);
  for_vectors<2>(d, channels, [&](auto, std::int64_t i, auto lanes) HWY_ATTR {
    auto y = hn::Mul(hn::Sub(lanes.load(d, x + i), mean), rstd);
    if constexpr (has_weight && has_bias) {
      y = hn::MulAdd(y, lanes.load(d, weight + i), lanes.load(d, bias + i));
    } else if constexpr (has_weight) {
      y = hn::Mul(y, lanes.load(d, weight + i));
    } else if constexpr (has_bias) {
      y = hn::Add(y, lanes.load(d, bias + i));
    }
    lanes.store(y, d, out + i);
  });
}

template <class X, class O, class W>
auto choose_normalize_row(bool has_weight, bool has_bias) {
  if (has_weight) return has_bias ? &normalize_row<true, true, X, O, W> : &normalize_row<true, false, X, O, W>;
  return has_bias ? &normalize_row<false, true, X, O, W> : &normalize_row<false, false, X, O, W>;
}

template <class X, class O, class W>
void forward(const LayerNormForward& k) {
  using T = accumulator_t<X>;
  const std::int64_t channels = k.x.dim(-1), rows = channels ? k.x.numel() / channels : k.mean.numel();
  const auto normalize = choose_normalize_row<X, O, W>(k.weight.defined(), k.bias.defined());
  const X* x = k.x.data<X>();
  const W *weight = k.weight.data<W>(), *bias = k.bias.data<W>();
  O* out = k.out.data<O>();
  T *mean = k.mean.data<T>(), *rstd = k.rstd.data<T>();
  parallel_for(rows, rows_per_piece(channels), [=, eps = T(k.eps)](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const Statistics<T> statistics = row_statistics(x + r * channels, channels, eps);
      if (mean) mean[r] = statistics.mean;
      if (rstd) rstd[r] = statistics.rstd;
      if (out) normalize(x + r * channels, statistics, weight, bias, out + r * channels, channels);
    }
  });
}

template <class X, class O, class W>
void rebuild(const LayerNormRebuild& k) {
  using T = accumulator_t<X>;
  const std::int64_t channels = k.x.dim(-1), rows = k.mean.numel();
  const auto normalize = choose_normalize_row<X, O, W>(k.weight.defined(), k.bias.defined());
  const X* x = k.x.data<X>();
  const W *weight = k.weight.data<W>(), *bias = k.bias.data<W>();
  const T *mean = k.mean.data<T>(), *rstd = k.rstd.data<T>();
  O* out = k.out.data<O>();
  parallel_for(rows, rows_per_piece(channels), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      normalize(x + r * channels, {mean[r], rstd[r]}, weight, bias, out + r * channels, channels);
    }
  });
}

// Gradients of a row. With g = grad_out * weight: grad_x = rstd * (g - mean(g) - xhat * mean(g * xhat)).
template <bool has_weight, bool sums_parameters, class X, class O, class W, class T = accumulator_t<X>>
void backward_row(const O* grad_out, const X* x, Statistics<T> statistics, const W* weight, X* grad_x, T* sum_weight, T* sum_bias,
                  std::int64_t channels) {
  const hn::ScalableTag<T> d;
  const auto mean = hn::Set(d, statistics.mean), rstd = hn::Set(d, statistics.rstd);
  Sums<decltype(d), 2> sum_g(d), sum_gx(d);
  for_vectors<2>(d, channels, [&](auto k, std::int64_t i, auto lanes) HWY_ATTR {
    const auto dy = lanes.load(d, grad_out + i);
    const auto xhat = hn::Mul(hn::Sub(lanes.load(d, x + i), mean), rstd);
    auto g = dy;
    if constexpr (has_weight) g = hn::Mul(dy, lanes.load(d, weight + i));
    sum_g.part[k] = hn::Add(sum_g.part[k], g);
    sum_gx.part[k] = hn::MulAdd(g, xhat, sum_gx.part[k]);
    if constexpr (sums_parameters) {
      lanes.store(hn::MulAdd(dy, xhat, lanes.load(d, sum_weight + i)), d, sum_weight + i);
      lanes.store(hn::Add(dy, lanes.load(d, sum_bias + i)), d, sum_bias + i);
    }
  });
  if (!grad_x) return;
  const auto mean_g = hn::Set(d, sum_g.total(d) / T(channels)), mean_gx = hn::Set(d, sum_gx.total(d) / T(channels));
  for_vectors<2>(d, channels, [&](auto, std::int64_t i, auto lanes) HWY_ATTR {
    const auto xhat = hn::Mul(hn::Sub(lanes.load(d, x + i), mean), rstd);
    auto g = lanes.load(d, grad_out + i);
    if constexpr (has_weight) g = hn::Mul(g, lanes.load(d, weight + i));
    lanes.store(hn::Mul(rstd, hn::NegMulAdd(xhat, mean_gx, hn::Sub(g, mean_g))), d, grad_x + i);
  });
}

template <class X, class O, class W>
auto choose_backward_row(bool has_weight, bool sums_parameters) {
  if (has_weight) return sums_parameters ? &backward_row<true, true, X, O, W> : &backward_row<true, false, X, O, W>;
  return sums_parameters ? &backward_row<false, true, X, O, W> : &backward_row<false, false, X, O, W>;
}

template <class X, class O, class W>
void backward(const LayerNormBackward& k) {
  using T = accumulator_t<X>;
  const std::int64_t channels = k.x.dim(-1), rows = k.mean.numel();
  W *grad_weight = k.grad_weight.data<W>(), *grad_bias = k.grad_bias.data<W>();
  T* scratch = k.scratch.data<T>();
  const bool sums_parameters = grad_weight || grad_bias;
  const auto row = choose_backward_row<X, O, W>(k.weight.defined(), sums_parameters);
  const O* grad_out = k.grad_out.data<O>();
  const X* x = k.x.data<X>();
  const W* weight = k.weight.data<W>();
  const T *mean = k.mean.data<T>(), *rstd = k.rstd.data<T>();
  X* grad_x = k.out.data<X>();
  if (!grad_x && !sums_parameters) return;
  const std::int64_t grain = LayerNormBackward::rows_per_piece(DeviceKind::cpu, rows, channels);
  parallel_for(rows, grain, [=](std::int64_t begin, std::int64_t end) {
    T* sums = sums_parameters ? scratch + begin / grain * 2 * channels : nullptr;
    if (sums) std::fill_n(sums, 2 * channels, T(0));
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t at = r * channels;
      row(grad_out + at, x + at, {mean[r], rstd[r]}, weight, grad_x ? grad_x + at : nullptr, sums, sums ? sums + channels : nullptr, channels);
    }
  });
  if (!sums_parameters) return;
  const std::int64_t pieces = (rows + grain - 1) / grain;
  // The pieces are added up in the first one, and rounded once.
  parallel_for(channels, 2048, [=](std::int64_t begin, std::int64_t end) {
    const auto add_pieces = [&](W* out, T* part) {
      if (!out) return;
      if (pieces == 0) return std::fill(out + begin, out + end, W(0));
      for (std::int64_t p = 1; p < pieces; ++p) {
        for (std::int64_t c = begin; c < end; ++c) part[c] += part[p * 2 * channels + c];
      }
      for (std::int64_t c = begin; c < end; ++c) out[c] = W(part[c]);
    };
    add_pieces(grad_weight, scratch);
    add_pieces(grad_bias, scratch + channels);
  });
}

}  // namespace

std::int64_t LayerNormBackward::rows_per_piece(DeviceKind target, std::int64_t num_rows, std::int64_t num_channels) {
  if (target == DeviceKind::cuda) return std::max<std::int64_t>((num_rows + 255) / 256, 16);
  return std::max((num_rows + 63) / 64, refrain::rows_per_piece(num_channels));
}

std::int64_t LayerNormBackward::num_scratch(DeviceKind target, std::int64_t num_rows, std::int64_t num_channels) {
  const std::int64_t piece = rows_per_piece(target, num_rows, num_channels);
  return (num_rows + piece - 1) / piece * 2 * num_channels;
}

void run(Cpu, const LayerNormForward& k) {
  if (!k.out.has_bytes() && !k.mean.has_bytes() && !k.rstd.has_bytes()) return;
  norm_dtypes::dispatch(k, k.out.dtype(), [&]<class X, class O, class W>() { forward<X, O, W>(k); });
}

void run(Cpu, const LayerNormRebuild& k) {
  if (!k.out.has_bytes()) return;
  norm_dtypes::dispatch(k, k.out.dtype(), [&]<class X, class O, class W>() { rebuild<X, O, W>(k); });
}

void run(Cpu, const LayerNormBackward& k) {
  norm_dtypes::dispatch(k, k.grad_out.dtype(), [&]<class X, class O, class W>() { backward<X, O, W>(k); });
}

}  // namespace refrain
