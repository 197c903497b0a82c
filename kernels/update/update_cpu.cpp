// Parameter updates on the CPU: one pass over parameter, gradient and state. 16-bit operands go through tiles that stay
// in the first-level cache: widened, updated by the arithmetic of f32 parameters, rounded.
#include <refrain/core/parallel.h>
#include <refrain/kernels/common/simd_random.h>
#include <refrain/kernels/common/simd_span.h>
#include <refrain/kernels/update/stochastic_rounding.h>
#include <refrain/kernels/update/update.h>

#include <atomic>
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

// The operands of one run of elements, in the type of the arithmetic.
template <class T>
struct Run {
  const T* grad;
  T* parameter;
  T* state[2];
  T* change;  // null, or an array for what is not zero where an update is not
};

// Numbers of a step that are worked out once.
struct NoCorrections {};
struct Corrections {
  double minus_step, square_scale;
};
NoCorrections corrections_of(const SgdUpdate&) { return {}; }
Corrections corrections_of(const AdamUpdate& k) {
  const double correction1 = 1 - std::pow(k.beta1, double(k.step)), correction2 = 1 - std::pow(k.beta2, double(k.step));
  return {-k.lr / correction1, 1 / std::sqrt(correction2)};
}

template <bool has_momentum, bool wants_change, class T>
void update_run(const SgdUpdate& k, NoCorrections, const Run<T>& r, std::int64_t n) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, T(k.grad_scale)), decay = hn::Set(d, T(k.weight_decay));
  const auto momentum = hn::Set(d, T(k.momentum)), minus_lr = hn::Set(d, T(-k.lr));
  const bool nesterov = k.nesterov;
  for_vectors<2>(d, n, [&](auto, std::int64_t i, auto lanes) HWY_ATTR {
    const auto p = lanes.load(d, r.parameter + i);
    auto g = fused(d, decay, p, hn::Mul(lanes.load(d, r.grad + i), scale));
    if constexpr (has_momentum) {
      const auto m = fused(d, momentum, lanes.load(d, r.state[0] + i), g);
      lanes.store(m, d, r.state[0] + i);
      g = nesterov ? fused(d, momentum, m, g) : m;
    }
    lanes.store(fused(d, minus_lr, g, p), d, r.parameter + i);
    if constexpr (wants_change) lanes.store(hn::Mul(minus_lr, g), d, r.change + i);
  });
}

template <bool is_decoupled, bool wants_change, class T>
void update_run(const AdamUpdate& k, const Corrections& corrections, const Run<T>& r, std::int64_t n) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, T(k.grad_scale));
  const auto decay = hn::Set(d, T(is_decoupled ? 1 - k.lr * k.weight_decay : k.weight_decay));
  const auto beta1 = hn::Set(d, T(k.beta1)), beta2 = hn::Set(d, T(k.beta2));
  const auto rest1 = hn::Set(d, T(1 - k.beta1)), rest2 = hn::Set(d, T(1 - k.beta2));
  const auto square_scale = hn::Set(d, T(corrections.square_scale)), eps = hn::Set(d, T(k.eps));
  const auto minus_step = hn::Set(d, T(corrections.minus_step));
  for_vectors<2>(d, n, [&](auto, std::int64_t i, auto lanes) HWY_ATTR {
    const auto old = lanes.load(d, r.parameter + i);
    auto p = old;
    auto g = hn::Mul(lanes.load(d, r.grad + i), scale);
    if constexpr (is_decoupled) p = hn::Mul(p, decay);
    else g = fused(d, decay, p, g);
    const auto m = fused(d, beta1, lanes.load(d, r.state[0] + i), hn::Mul(rest1, g));
    const auto v = fused(d, beta2, lanes.load(d, r.state[1] + i), hn::Mul(rest2, hn::Mul(g, g)));
    lanes.store(m, d, r.state[0] + i);
    lanes.store(v, d, r.state[1] + i);
    const auto ratio = hn::Div(m, fused(d, hn::Sqrt(v), square_scale, eps));
    lanes.store(fused(d, minus_step, ratio, p), d, r.parameter + i);
    if constexpr (wants_change) {
      const auto step = hn::Mul(minus_step, ratio);
      lanes.store(hn::IfThenElse(hn::Eq(p, old), step, hn::Set(d, T(1))), d, r.change + i);
    }
  });
}

const OptionalOut* state_of(const SgdUpdate& k, int i) { return i == 0 && k.momentum_buffer.defined() ? &k.momentum_buffer : nullptr; }
const Out* state_of(const AdamUpdate& k, int i) { return i == 0 ? &k.mean : &k.square; }

// Everything in T.
template <bool variant, class T, class K>
void update_plain(const K& k) {
  const auto corrections = corrections_of(k);
  parallel_for(k.out.numel(), kPiece, [&](std::int64_t begin, std::int64_t end) {
    Run<T> run{k.grad.template data<T>() + begin, k.out.template data<T>() + begin, {}, nullptr};
    for (int s = 0; s < 2; ++s) {
      if (const auto* state = state_of(k, s)) run.state[s] = state->template data<T>() + begin;
    }
    update_run<variant, false>(k, corrections, run, end - begin);
  });
}

constexpr std::int64_t kTile = 512;

// Elements at, at + 1, … of a tensor of S or f32: its own memory if that is f32, else widened into the buffer.
template <class S>
float* opened(DType dtype, const std::byte* address, std::int64_t at, std::int64_t n, float* buffer) {
  if (dtype == DType::f32) return reinterpret_cast<float*>(const_cast<std::byte*>(address)) + at;
  simd::map(reinterpret_cast<const S*>(address) + at, buffer, n, [](auto, auto v) HWY_ATTR { return v; });
  return buffer;
}

template <class S>
void store_nearest(const float* values, S* out, std::int64_t n) {
  simd::map(values, out, n, [](auto, auto v) HWY_ATTR { return v; });
}

template <class T>
std::int64_t count_lost(const T* before, const T* after, const float* change, std::int64_t n) {
  std::int32_t lost = 0;  // n is at most kTile
  for (std::int64_t i = 0; i < n; ++i) lost += std::int32_t(change[i] != 0) & std::int32_t(before[i] == after[i]);
  return lost;
}

// Parameters of S: tile by tile.
template <bool variant, class S, class K>
void update_tiles(const K& k) {
  const auto corrections = corrections_of(k);
  std::atomic<std::int64_t> num_lost = 0;  // a sum of integers: the same in any order
  RandomKey state_key = k.rounding.key;
  ++state_key.call;
  const simd::RandomWords parameter_words(k.rounding.key), state_words(state_key);
  const bool is_stochastic = k.rounding.mode == Rounding::stochastic, has_master = k.master.defined();
  bool rounds_state = false;
  for (int s = 0; s < 2; ++s) rounds_state = rounds_state || (state_of(k, s) && state_of(k, s)->dtype() != DType::f32);
  parallel_for(k.out.numel(), kPiece, [&](std::int64_t begin, std::int64_t end) {
    HWY_ALIGN float parameter[kTile], grad[kTile], states[2][kTile], change[kTile];
    HWY_ALIGN std::uint32_t words[kTile];
    HWY_ALIGN float old_master[kTile];
    std::uint16_t old_bits[kTile];
    std::int64_t lost = 0;
    for (std::int64_t at = begin; at < end; at += kTile) {
      const std::int64_t n = std::min(kTile, end - at);
      S* out = k.out.template data<S>() + at;
      Run<float> run{opened<S>(k.grad.dtype(), k.grad.address(), at, n, grad), nullptr, {}, change};
      run.parameter = has_master ? k.master.template data<float>() + at : opened<S>(k.out.dtype(), k.out.address(), at, n, parameter);
      for (int s = 0; s < 2; ++s) {
        if (const auto* state = state_of(k, s)) run.state[s] = opened<S>(state->dtype(), state->address(), at, n, states[s]);
      }
      if (has_master) std::memcpy(old_master, run.parameter, std::size_t(n) * sizeof(float));
      else std::memcpy(old_bits, out, std::size_t(n) * sizeof(S));

      update_run<variant, true>(k, corrections, run, n);

      const std::uint64_t element = std::uint64_t(k.rounding.first_element + at);
      if (is_stochastic && !has_master) {
        parameter_words.fill(element, words, n);
        simd::round_stochastic<0>(run.parameter, words, out, n);
      } else {
        store_nearest(run.parameter, out, n);
      }
      if (is_stochastic && rounds_state) state_words.fill(element, words, n);
      for (int s = 0; s < 2; ++s) {
        const auto* state = state_of(k, s);
        if (!state || state->dtype() == DType::f32) continue;
        S* stored = state->template data<S>() + at;
        if (!is_stochastic) store_nearest(states[s], stored, n);
        else if (s == 0) simd::round_stochastic<0>(states[s], words, stored, n);
        else simd::round_stochastic<16>(states[s], words, stored, n);
      }
      lost += has_master ? count_lost(old_master, run.parameter, change, n)
                         : count_lost(old_bits, reinterpret_cast<const std::uint16_t*>(out), change, n);
    }
    num_lost += lost;
  });
  if (k.num_lost.has_bytes()) *k.num_lost.template data<std::int64_t>() += num_lost;
}

template <bool variant, class K>
void update(const K& k) {
  dispatch_floating(k.out.dtype(), k.name, [&](auto t) {
    using S = decltype(t);
    if constexpr (is_half<S>) update_tiles<variant, S>(k);
    else update_plain<variant, S>(k);
  });
}

}  // namespace

void run(Cpu, const SgdUpdate& k) {
  if (!k.out.has_bytes()) return;
  k.momentum_buffer.defined() ? update<true>(k) : update<false>(k);
}

void run(Cpu, const AdamUpdate& k) {
  if (!k.out.has_bytes()) return;
  k.is_decoupled ? update<true>(k) : update<false>(k);
}

void run(Cpu, const ZeroInPlace& k) {
  if (!k.out.has_bytes()) return;
  std::byte* bytes = k.out.address();
  parallel_for(std::int64_t(k.out.bytes()), 1 << 18, [=](std::int64_t begin, std::int64_t end) { std::memset(bytes + begin, 0, std::size_t(end - begin)); });
}

void run(Cpu, const ScaleInPlace& k) {
  if (!k.out.has_bytes()) return;
  dispatch_floating(k.out.dtype(), k.name, [&](auto t) {
    using S = decltype(t);
    using T = accumulator_t<S>;
    S* out = k.out.data<S>();
    parallel_for(k.out.numel(), kPiece, [=, factor = T(k.factor)](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) out[i] = S(T(out[i]) * factor);
    });
  });
}

}  // namespace refrain
