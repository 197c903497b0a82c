// Batch norm on the CPU: a channel is one piece of work, so its sums have one order whatever the number of threads. X, O
// and W are the types of x, out and the parameters; arithmetic, statistics and sums are in T = accumulator_t<X>.
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

// [N, C, S]: a channel is N runs of S contiguous elements.
struct Layout {
  std::int64_t samples, channels, run;
  explicit Layout(const Shape& shape) : samples(shape[0]), channels(shape[1]), run(1) {
    for (int i = 2; i < shape.size(); ++i) run *= shape[i];
  }
  std::int64_t count() const { return samples * run; }
  // Calls f(offset) for every run of a channel.
  template <class F>
  HWY_INLINE void for_runs(std::int64_t channel, F&& f) const {
    for (std::int64_t n = 0; n < samples; ++n) f((n * channels + channel) * run);
  }
  template <class F>
  void for_channels(F&& f) const {
    const std::int64_t grain = std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(count(), 1));
    parallel_for(channels, grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t c = begin; c < end; ++c) f(c);
    });
  }
};

// R: the type of the running statistics.
template <class X, class R>
void statistics(const BatchNormStatistics& k) {
  using T = accumulator_t<X>;
  const Layout layout(k.x.shape());
  const T count = T(layout.count());
  const X* x = k.x.data<X>();
  layout.for_channels([&](std::int64_t c) {
    const hn::ScalableTag<T> d;
    Sums<decltype(d), 4> sum(d);
    layout.for_runs(c, [&](std::int64_t at) {
      for_vectors<4>(d, layout.run, [&](auto j, std::int64_t i, auto lanes) HWY_ATTR {
        sum.part[j] = hn::Add(sum.part[j], lanes.load(d, x + at + i));
      });
    });
    const T first_mean = sum.total(d) / count;
    const auto shift = hn::Set(d, first_mean);
    Sums<decltype(d), 4> deviation(d), square(d);
    layout.for_runs(c, [&](std::int64_t at) {
      for_vectors<4>(d, layout.run, [&](auto j, std::int64_t i, auto lanes) HWY_ATTR {
        const auto difference = lanes.keep(d, hn::Sub(lanes.load(d, x + at + i), shift));
        deviation.part[j] = hn::Add(deviation.part[j], difference);
        square.part[j] = hn::MulAdd(difference, difference, square.part[j]);
      });
    });
    const T correction = deviation.total(d) / count;
    const T mean = first_mean + correction;
    T squares = square.total(d) - deviation.total(d) * correction;
    if (squares < 0) squares = 0;
    if (k.out.has_bytes()) k.out.data<T>()[c] = mean;
    if (k.rstd.has_bytes()) k.rstd.data<T>()[c] = T(1) / std::sqrt(squares / count + T(k.eps));
    if (!k.running_mean.has_bytes()) return;
    const T momentum = T(k.momentum);
    const auto move = [momentum](R& running, T batch) { running = R(std::fma(momentum, batch - T(running), T(running))); };
    move(k.running_mean.data<R>()[c], mean);
    move(k.running_var.data<R>()[c], squares / (count - T(1)));
  });
}

template <class X, class O, class W>
void apply(const BatchNormApply& k) {
  using T = accumulator_t<X>;
  const Layout layout(k.x.shape());
  const X* x = k.x.data<X>();
  const T *mean = k.mean.data<T>(), *rstd = k.rstd.data<T>();
  const W *weight = k.weight.data<W>(), *bias = k.bias.data<W>();
  O* out = k.out.data<O>();
  layout.for_channels([&](std::int64_t c) {
    const hn::ScalableTag<T> d;
    const auto m = hn::Set(d, mean[c]), r = hn::Set(d, rstd[c]);
    const auto w = hn::Set(d, weight ? T(weight[c]) : T(1)), b = hn::Set(d, bias ? T(bias[c]) : T(0));
    layout.for_runs(c, [&](std::int64_t at) {
      for_vectors(d, layout.run, [&](std::int64_t i, auto lanes) HWY_ATTR {
        lanes.store(hn::MulAdd(hn::Mul(hn::Sub(lanes.load(d, x + at + i), m), r), w, b), d, out + at + i);
      });
    });
  });
}

// As in layer norm, over a channel: grad_x = weight * rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = grad_out.
template <class X, class O, class W>
void backward(const BatchNormBackward& k) {
  using T = accumulator_t<X>;
  const Layout layout(k.x.shape());
  const O* grad_out = k.grad_out.data<O>();
  const X* x = k.x.data<X>();
  const T *mean = k.mean.data<T>(), *rstd = k.rstd.data<T>();
  const W* weight = k.weight.data<W>();
  X* grad_x = k.out.data<X>();
  W *grad_weight = k.grad_weight.data<W>(), *grad_bias = k.grad_bias.data<W>();
  layout.for_channels([&](std::int64_t c) {
    const hn::ScalableTag<T> d;
    const auto m = hn::Set(d, mean[c]), r = hn::Set(d, rstd[c]);
    T sum_g = 0, sum_gx = 0;
    if (grad_weight || grad_bias || (grad_x && k.batch_statistics)) {
      Sums<decltype(d), 2> g_sums(d), gx_sums(d);
      layout.for_runs(c, [&](std::int64_t at) {
        for_vectors<2>(d, layout.run, [&](auto j, std::int64_t i, auto lanes) HWY_ATTR {
          const auto g = lanes.load(d, grad_out + at + i);
          const auto xhat = hn::Mul(hn::Sub(lanes.load(d, x + at + i), m), r);
          g_sums.part[j] = hn::Add(g_sums.part[j], g);
          gx_sums.part[j] = hn::MulAdd(g, xhat, gx_sums.part[j]);
        });
      });
      sum_g = g_sums.total(d);
      sum_gx = gx_sums.total(d);
    }
    if (grad_weight) grad_weight[c] = W(sum_gx);
    if (grad_bias) grad_bias[c] = W(sum_g);
    if (!grad_x) return;
    const auto scale = hn::Set(d, (weight ? T(weight[c]) : T(1)) * rstd[c]);
    const T count = T(layout.count());
    const auto mean_g = hn::Set(d, k.batch_statistics ? sum_g / count : T(0)), mean_gx = hn::Set(d, k.batch_statistics ? sum_gx / count : T(0));
    layout.for_runs(c, [&](std::int64_t at) {
      for_vectors(d, layout.run, [&](std::int64_t i, auto lanes) HWY_ATTR {
        const auto xhat = hn::Mul(hn::Sub(lanes.load(d, x + at + i), m), r);
        const auto g = hn::Sub(lanes.load(d, grad_out + at + i), mean_g);
        lanes.store(hn::Mul(scale, hn::NegMulAdd(xhat, mean_gx, g)), d, grad_x + at + i);
      });
    });
  });
}

}  // namespace

void run(Cpu, const BatchNormStatistics& k) {
  if (!k.out.has_bytes() && !k.rstd.has_bytes() && !k.running_mean.has_bytes()) return;
  dispatch_floating(k.x.dtype(), k.name, [&](auto x) {
    using X = decltype(x);
    if (k.running_mean.defined() && k.running_mean.dtype() != k.x.dtype()) return statistics<X, accumulator_t<X>>(k);
    statistics<X, X>(k);
  });
}

void run(Cpu, const BatchNormRunning& k) {
  dispatch_floating(k.running_mean.dtype(), k.name, [&](auto r) {
    using R = decltype(r);
    using T = accumulator_t<R>;
    for (std::int64_t c = 0; c < k.out.numel(); ++c) {
      if (k.out.has_bytes()) k.out.data<T>()[c] = T(k.running_mean.data<R>()[c]);
      if (k.rstd.has_bytes()) k.rstd.data<T>()[c] = T(1) / std::sqrt(T(k.running_var.data<R>()[c]) + T(k.eps));
    }
  });
}

void run(Cpu, const BatchNormApply& k) {
  if (!k.out.has_bytes()) return;
  norm_dtypes::dispatch(k, k.out.dtype(), [&]<class X, class O, class W>() { apply<X, O, W>(k); });
}

void run(Cpu, const BatchNormBackward& k) {
  norm_dtypes::dispatch(k, k.grad_out.dtype(), [&]<class X, class O, class W>() { backward<X, O, W>(k); });
}

}  // namespace refrain
