// Parameter updates on the CPU: one pass over parameter, gradient and state.
#include <refrain/core/parallel.h>
#include <refrain/kernels/common/simd_span.h>
#include <refrain/kernels/update/update.h>

#include <cmath>
#include <cstring>

namespace refrain {

namespace {

namespace hn = hwy::HWY_NAMESPACE;
using simd::for_vectors;

constexpr std::int64_t kPiece = 16384;

// a * b + c with one rounding, also on processors whose vectors cannot fuse.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V fused(D d, V a, V b, V c) {
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && defined(__FMA__)) || defined(__ARM_FEATURE_FMA)
  (void)d;
  return hn::MulAdd(a, b, c);
#else
  using T = hn::TFromD<D>;
  HWY_ALIGN T x[hn::MaxLanes(D())], y[hn::MaxLanes(D())], z[hn::MaxLanes(D())];
  hn::Store(a, d, x);
  hn::Store(b, d, y);
  hn::Store(c, d, z);
  for (std::size_t i = 0; i < hn::Lanes(d); ++i) z[i] = std::fma(x[i], y[i], z[i]);
  return hn::Load(d, z);
#endif
}

template <bool has_momentum, class T>
void sgd(const SgdUpdate& k) {
  const T* grad = k.grad.data<T>();
  T *parameter = k.out.data<T>(), *buffer = k.momentum_buffer.data<T>();
  parallel_for(k.out.numel(), kPiece, [&](std::int64_t begin, std::int64_t end) {
    const hn::ScalableTag<T> d;
    const auto scale = hn::Set(d, T(k.grad_scale)), decay = hn::Set(d, T(k.weight_decay));
    const auto momentum = hn::Set(d, T(k.momentum)), minus_lr = hn::Set(d, T(-k.lr));
    const bool nesterov = k.nesterov;
    for_vectors<2>(d, end - begin, [&](auto, std::int64_t i, auto lanes) HWY_ATTR {
      const std::int64_t at = begin + i;
      const auto p = lanes.load(d, parameter + at);
      auto g = fused(d, decay, p, hn::Mul(lanes.load(d, grad + at), scale));
      if constexpr (has_momentum) {
        const auto m = fused(d, momentum, lanes.load(d, buffer + at), g);
        lanes.store(m, d, buffer + at);
        g = nesterov ? fused(d, momentum, m, g) : m;
      }
      lanes.store(fused(d, minus_lr, g, p), d, parameter + at);
    });
  });
}

template <bool is_decoupled, class T>
void adam(const AdamUpdate& k) {
  const T* grad = k.grad.data<T>();
  T *parameter = k.out.data<T>(), *mean = k.mean.data<T>(), *square = k.square.data<T>();
  const double correction1 = 1 - std::pow(k.beta1, double(k.step)), correction2 = 1 - std::pow(k.beta2, double(k.step));
  parallel_for(k.out.numel(), kPiece, [&](std::int64_t begin, std::int64_t end) {
    const hn::ScalableTag<T> d;
    const auto scale = hn::Set(d, T(k.grad_scale));
    const auto decay = hn::Set(d, T(is_decoupled ? 1 - k.lr * k.weight_decay : k.weight_decay));
    const auto beta1 = hn::Set(d, T(k.beta1)), beta2 = hn::Set(d, T(k.beta2));
    const auto rest1 = hn::Set(d, T(1 - k.beta1)), rest2 = hn::Set(d, T(1 - k.beta2));
    const auto square_scale = hn::Set(d, T(1 / std::sqrt(correction2))), eps = hn::Set(d, T(k.eps));
    const auto minus_step = hn::Set(d, T(-k.lr / correction1));
    for_vectors<2>(d, end - begin, [&](auto, std::int64_t i, auto lanes) HWY_ATTR {
      const std::int64_t at = begin + i;
      auto p = lanes.load(d, parameter + at);
      auto g = hn::Mul(lanes.load(d, grad + at), scale);
      if constexpr (is_decoupled) p = hn::Mul(p, decay);
      else g = fused(d, decay, p, g);
      const auto m = fused(d, beta1, lanes.load(d, mean + at), hn::Mul(rest1, g));
      const auto v = fused(d, beta2, lanes.load(d, square + at), hn::Mul(rest2, hn::Mul(g, g)));
      lanes.store(m, d, mean + at);
      lanes.store(v, d, square + at);
      const auto denominator = fused(d, hn::Sqrt(v), square_scale, eps);
      lanes.store(fused(d, minus_step, hn::Div(m, denominator), p), d, parameter + at);
    });
  });
}

}  // namespace

void run(Cpu, const SgdUpdate& k) {
  if (!k.out.has_bytes()) return;
  dispatch_wide(k.out.dtype(), k.name, [&](auto t) {
    k.momentum_buffer.defined() ? sgd<true, decltype(t)>(k) : sgd<false, decltype(t)>(k);
  });
}

void run(Cpu, const AdamUpdate& k) {
  if (!k.out.has_bytes()) return;
  dispatch_wide(k.out.dtype(), k.name, [&](auto t) { k.is_decoupled ? adam<true, decltype(t)>(k) : adam<false, decltype(t)>(k); });
}

void run(Cpu, const ZeroInPlace& k) {
  if (!k.out.has_bytes()) return;
  std::byte* bytes = k.out.address();
  parallel_for(std::int64_t(k.out.bytes()), 1 << 18, [=](std::int64_t begin, std::int64_t end) { std::memset(bytes + begin, 0, std::size_t(end - begin)); });
}

void run(Cpu, const ScaleInPlace& k) {
  if (!k.out.has_bytes()) return;
  dispatch_wide(k.out.dtype(), k.name, [&](auto t) {
    using T = decltype(t);
    T* out = k.out.data<T>();
    parallel_for(k.out.numel(), kPiece, [=, factor = T(k.factor)](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) out[i] *= factor;
    });
  });
}

}  // namespace refrain
