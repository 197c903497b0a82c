// Batch norm over [N, C, S]: a block has a channel, which is N runs of S contiguous elements, so that its sums have one order.
// Applying it is element by element. X, O and W are the types of x, out and the parameters; arithmetic is in T = accumulator<X>.
#include <refrain/kernels/common/cuda/rows.cuh>
#include <refrain/kernels/norm/dtypes.cuh>
#include <refrain/kernels/norm/norm.h>

#include <algorithm>
#include <initializer_list>

namespace refrain {

namespace norm_kernels {

using namespace cuda;
using cuda::accumulator;

inline constexpr int kChannelThreads = 512;

struct Images {
  std::int64_t samples, channels, run;
  bool has_packs;  // runs may be read and written in packs
};

inline Images images_of(const Shape& shape, std::initializer_list<const void*> addresses) {
  const auto may_be_pack = [](const void* address) { return is_aligned(address, 16); };
  Images images{shape[0], shape[1], 1, std::all_of(addresses.begin(), addresses.end(), may_be_pack)};
  for (int i = 2; i < shape.size(); ++i) images.run *= shape[i];
  return images;
}

// Calls f(offset) for the first element of every pack of kPack that is this thread's, of the packs of a channel. Packs lie
// within runs: kPack divides images.run.
template <int kPack, class F>
__device__ __forceinline__ void for_channel(const Images& images, std::int64_t channel, F&& f) {
  const std::int64_t packs = images.run / kPack, total = packs * images.samples;
  if (std::int64_t(threadIdx.x) >= total) return;
  // Steps of kChannelThreads packs are so many samples and so many packs: no division in the loop.
  const std::int64_t step_samples = kChannelThreads / packs, step_packs = kChannelThreads % packs;
  std::int64_t sample = threadIdx.x / packs, pack = threadIdx.x % packs;
  while (sample < images.samples) {
    f((sample * images.channels + channel) * images.run + pack * kPack);
    sample += step_samples;
    pack += step_packs;
    if (pack >= packs) {
      pack -= packs;
      ++sample;
    }
  }
}

// kPack neighbours, at once where their addresses allow it: the order of sums does not depend on that.
template <int kPack, class E>
__device__ __forceinline__ Group<E, kPack> load_run(const E* address, bool has_packs) {
  Group<E, kPack> group;
  if (has_packs) {
    const auto pack = load_pack<E, kPack * int(sizeof(E))>(address);
#pragma unroll
    for (int j = 0; j < kPack; ++j) group[j] = pack[j];
  } else {
#pragma unroll
    for (int j = 0; j < kPack; ++j) group[j] = address[j];
  }
  return group;
}

template <int kPack, class E>
__device__ __forceinline__ void store_run(E* address, const Group<E, kPack>& group, bool has_packs) {
  if (has_packs) {
    Pack<E, kPack * int(sizeof(E))> pack;
#pragma unroll
    for (int j = 0; j < kPack; ++j) pack[j] = group[j];
    store_pack(address, pack);
  } else {
#pragma unroll
    for (int j = 0; j < kPack; ++j) address[j] = group[j];
  }
}

// kPack: elements at a time, 1 or as many as are 16 bytes of X.
template <class X, class R, int kPack>
__global__ void __launch_bounds__(kChannelThreads)
    batch_norm_statistics(Images images, const X* x, accumulator<X>* mean_out, accumulator<X>* rstd_out, R* running_mean,
                          R* running_var, accumulator<X> eps, accumulator<X> momentum) {
  using T = accumulator<X>;
  REFRAIN_SHARED(T, slots, [3][kChannelThreads / kWarp]);
  const std::int64_t c = blockIdx.x;
  const T count = T(images.samples * images.run);
  T sum = 0;
  for_channel<kPack>(images, c, [&](std::int64_t at) {
    const auto values = load_run<kPack>(x + at, images.has_packs);
#pragma unroll
    for (int j = 0; j < kPack; ++j) sum += widen(values[j]);
  });
  const T first_mean = block_reduce<kChannelThreads, Add>(sum, slots[0]) / count;
  T deviation = 0, square = 0;
  for_channel<kPack>(images, c, [&](std::int64_t at) {
    const auto values = load_run<kPack>(x + at, images.has_packs);
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const T difference = widen(values[j]) - first_mean;
      deviation += difference;
      square = fused(difference, difference, square);
    }
  });
  deviation = block_reduce<kChannelThreads, Add>(deviation, slots[1]);
  square = block_reduce<kChannelThreads, Add>(square, slots[2]);
  if (threadIdx.x != 0) return;
  const T correction = deviation / count, mean = first_mean + correction;
  T squares = square - deviation * correction;
  if (squares < T(0)) squares = T(0);
  if (mean_out) mean_out[c] = mean;
  if (rstd_out) rstd_out[c] = T(1) / root(squares / count + eps);
  if (!running_mean) return;
  const T old_mean = T(widen(running_mean[c])), old_var = T(widen(running_var[c]));
  running_mean[c] = narrow<R>(fused(momentum, mean - old_mean, old_mean));
  running_var[c] = narrow<R>(fused(momentum, squares / (count - T(1)) - old_var, old_var));
}

template <class R>
__global__ void __launch_bounds__(256) batch_norm_running(const R* running_mean, const R* running_var, accumulator<R>* mean,
                                                          accumulator<R>* rstd, accumulator<R> eps, std::int64_t channels) {
  using T = accumulator<R>;
  const std::int64_t c = std::int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (c >= channels) return;
  if (mean) mean[c] = widen(running_mean[c]);
  if (rstd) rstd[c] = T(1) / root(widen(running_var[c]) + eps);
}

template <class X, class O, class W, int kPack>
__global__ void __launch_bounds__(256)
    batch_norm_apply(Images images, const X* x, const accumulator<X>* mean, const accumulator<X>* rstd, const W* weight,
                     const W* bias, O* out, std::int64_t packs) {
  using T = accumulator<X>;
  const std::int64_t p = std::int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (p >= packs) return;
  const std::int64_t at = p * kPack, c = at / images.run % images.channels;
  const T m = mean[c], r = rstd[c], w = weight ? T(widen(weight[c])) : T(1), b = bias ? T(widen(bias[c])) : T(0);
  const auto values = load_run<kPack>(x + at, images.has_packs);
  Group<O, kPack> y;
#pragma unroll
  for (int j = 0; j < kPack; ++j) y[j] = narrow<O>(fused((widen(values[j]) - m) * r, w, b));
  store_run(out + at, y, images.has_packs);
}

template <class X, class O, class W>
struct BatchNormGradients {
  using T = accumulator<X>;
  Images images;
  const O* grad_out;
  const X* x;
  const T *mean, *rstd;
  const W* weight;
  X* grad_x;
  W *grad_weight, *grad_bias;
  bool batch_statistics;
};

// A channel: grad_x = weight * rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = grad_out.
template <class X, class O, class W, int kPack>
__global__ void __launch_bounds__(kChannelThreads) batch_norm_backward(BatchNormGradients<X, O, W> a) {
  using T = accumulator<X>;
  REFRAIN_SHARED(T, slots, [2][kChannelThreads / kWarp]);
  const std::int64_t c = blockIdx.x;
  const T mean = a.mean[c], rstd = a.rstd[c];
  T sum_g = 0, sum_gx = 0;
  if (a.grad_weight || a.grad_bias || a.batch_statistics) {
    for_channel<kPack>(a.images, c, [&](std::int64_t at) {
      const auto xs = load_run<kPack>(a.x + at, a.images.has_packs);
      const auto gs = load_run<kPack>(a.grad_out + at, a.images.has_packs);
#pragma unroll
      for (int j = 0; j < kPack; ++j) {
        const T g = T(widen(gs[j]));
        sum_g += g;
        sum_gx = fused(g, (widen(xs[j]) - mean) * rstd, sum_gx);
      }
    });
    sum_g = block_reduce<kChannelThreads, Add>(sum_g, slots[0]);
    sum_gx = block_reduce<kChannelThreads, Add>(sum_gx, slots[1]);
  }
  if (threadIdx.x == 0) {
    if (a.grad_weight) a.grad_weight[c] = narrow<W>(sum_gx);
    if (a.grad_bias) a.grad_bias[c] = narrow<W>(sum_g);
  }
  if (!a.grad_x) return;
  const T scale = (a.weight ? T(widen(a.weight[c])) : T(1)) * rstd, count = T(a.images.samples * a.images.run);
  const T mean_g = a.batch_statistics ? sum_g / count : T(0), mean_gx = a.batch_statistics ? sum_gx / count : T(0);
  for_channel<kPack>(a.images, c, [&](std::int64_t at) {
    const auto xs = load_run<kPack>(a.x + at, a.images.has_packs);
    const auto gs = load_run<kPack>(a.grad_out + at, a.images.has_packs);
    Group<X, kPack> grad_x;
#pragma unroll
    for (int j = 0; j < kPack; ++j) {
      const T xhat = (widen(xs[j]) - mean) * rstd;
      grad_x[j] = narrow<X>(scale * fused(-xhat, mean_gx, T(widen(gs[j])) - mean_g));
    }
    store_run(a.grad_x + at, grad_x, a.images.has_packs);
  });
}

// Calls f(std::integral_constant<int, kPack>) with 16 bytes of X when runs are whole packs, else 1.
template <class X, class F>
void choose_pack(const Images& images, F&& f) {
  constexpr int kPack = 16 / int(sizeof(X));
  if (images.run % kPack == 0) f(std::integral_constant<int, kPack>{});
  else f(std::integral_constant<int, 1>{});
}

template <class X, class R>
void statistics(Cuda device, const BatchNormStatistics& k) {
  using T = accumulator<X>;
  const Images images = images_of(k.x.shape(), {k.x.address()});
  choose_pack<X>(images, [&](auto pack) {
    launch(k.name, batch_norm_statistics<X, R, pack>, {.grid = dim3(unsigned(images.channels)), .block = dim3(kChannelThreads)},
           device, images, data_of<X>(k.x), data_of<T>(k.out), data_of<T>(k.rstd), data_of<R>(k.running_mean),
           data_of<R>(k.running_var), T(k.eps), T(k.momentum));
  });
}

}  // namespace norm_kernels

void run(Cuda device, const BatchNormStatistics& k) {
  if (!k.out.has_bytes() && !k.rstd.has_bytes() && !k.running_mean.has_bytes()) return;
  cuda::dispatch_floating(k.x.dtype(), k.name, [&](auto x) {
    using X = decltype(x);
    const bool is_wide = k.running_mean.defined() && k.running_mean.dtype() != k.x.dtype();
    is_wide ? norm_kernels::statistics<X, cuda::accumulator<X>>(device, k) : norm_kernels::statistics<X, X>(device, k);
  });
}

void run(Cuda device, const BatchNormRunning& k) {
  if (!k.out.has_bytes() && !k.rstd.has_bytes()) return;
  cuda::dispatch_floating(k.running_mean.dtype(), k.name, [&](auto r) {
    using R = decltype(r);
    using T = cuda::accumulator<R>;
    const std::int64_t channels = k.out.numel();
    cuda::launch(k.name, norm_kernels::batch_norm_running<R>,
                 {.grid = dim3(unsigned(cuda::ceil_div(channels, 256))), .block = dim3(256)}, device,
                 cuda::data_of<R>(k.running_mean), cuda::data_of<R>(k.running_var), cuda::data_of<T>(k.out),
                 cuda::data_of<T>(k.rstd), T(k.eps), channels);
  });
}

void run(Cuda device, const BatchNormApply& k) {
  using namespace cuda;
  if (!k.out.has_bytes() || k.out.numel() == 0) return;
  norm_dtypes::dispatch_on_device(k, k.out.dtype(), [&]<class X, class O, class W>() {
    using T = cuda::accumulator<X>;
    const norm_kernels::Images images = norm_kernels::images_of(k.x.shape(), {k.x.address(), k.out.address()});
    norm_kernels::choose_pack<X>(images, [&](auto pack) {
      const std::int64_t packs = k.out.numel() / pack;
      launch(k.name, norm_kernels::batch_norm_apply<X, O, W, pack>,
             {.grid = dim3(unsigned(ceil_div(packs, 256))), .block = dim3(256)}, device, images, data_of<X>(k.x),
             data_of<T>(k.mean), data_of<T>(k.rstd), data_of<W>(k.weight), data_of<W>(k.bias), data_of<O>(k.out), packs);
    });
  });
}

void run(Cuda device, const BatchNormBackward& k) {
  using namespace cuda;
  if (!k.out.has_bytes() && !k.grad_weight.has_bytes() && !k.grad_bias.has_bytes()) return;
  norm_dtypes::dispatch_on_device(k, k.grad_out.dtype(), [&]<class X, class O, class W>() {
    using T = cuda::accumulator<X>;
    const norm_kernels::BatchNormGradients<X, O, W> a{
        .images = norm_kernels::images_of(k.x.shape(), {k.grad_out.address(), k.x.address(), k.out.address()}),
        .grad_out = data_of<O>(k.grad_out),
        .x = data_of<X>(k.x),
        .mean = data_of<T>(k.mean),
        .rstd = data_of<T>(k.rstd),
        .weight = data_of<W>(k.weight),
        .grad_x = data_of<X>(k.out),
        .grad_weight = data_of<W>(k.grad_weight),
        .grad_bias = data_of<W>(k.grad_bias),
        .batch_statistics = k.batch_statistics};
    norm_kernels::choose_pack<X>(a.images, [&](auto pack) {
      launch(k.name, norm_kernels::batch_norm_backward<X, O, W, pack>,
             {.grid = dim3(unsigned(a.images.channels)), .block = dim3(norm_kernels::kChannelThreads)}, device, a);
    });
  });
}

}  // namespace refrain
