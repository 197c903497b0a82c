// Parameter updates on the CPU: one pass over parameter, gradient and state, the arithmetic of 16-bit parameters that of
// f32 ones, between widening and rounding in registers.
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

// One update's arithmetic on vectors: parameter, gradient and state in, parameter and state out. `change` gets what is
// not zero where the update is not.
template <class K, bool variant, class T>
struct Step;

template <bool has_momentum, class T>
struct Step<SgdUpdate, has_momentum, T> {
  static constexpr int num_states = has_momentum ? 1 : 0;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  V scale, decay, momentum, minus_lr;
  bool nesterov;

  explicit Step(const SgdUpdate& k)
      : scale(hn::Set(D(), T(k.grad_scale))), decay(hn::Set(D(), T(k.weight_decay))), momentum(hn::Set(D(), T(k.momentum))),
        minus_lr(hn::Set(D(), T(-k.lr))), nesterov(k.nesterov) {}

  HWY_INLINE void operator()(V& p, V g, V* state, V& change) const {
    const D d;
    g = fused(d, decay, p, hn::Mul(g, scale));
    if constexpr (has_momentum) {
      state[0] = fused(d, momentum, state[0], g);
      g = nesterov ? fused(d, momentum, state[0], g) : state[0];
    }
    p = fused(d, minus_lr, g, p);
    change = hn::Mul(minus_lr, g);
  }
};

template <bool is_decoupled, class T>
struct Step<AdamUpdate, is_decoupled, T> {
  static constexpr int num_states = 2;
  using D = hn::ScalableTag<T>;
  using V = hn::Vec<D>;
  V scale, decay, beta1, beta2, rest1, rest2, square_scale, eps, minus_step;

  explicit Step(const AdamUpdate& k)
      : scale(hn::Set(D(), T(k.grad_scale))), decay(hn::Set(D(), T(is_decoupled ? 1 - k.lr * k.weight_decay : k.weight_decay))),
        beta1(hn::Set(D(), T(k.beta1))), beta2(hn::Set(D(), T(k.beta2))), rest1(hn::Set(D(), T(1 - k.beta1))), rest2(hn::Set(D(), T(1 - k.beta2))),
        square_scale(hn::Set(D(), T(1 / std::sqrt(1 - std::pow(k.beta2, double(k.step)))))), eps(hn::Set(D(), T(k.eps))),
        minus_step(hn::Set(D(), T(-k.lr / (1 - std::pow(k.beta1, double(k.step)))))) {}

  HWY_INLINE void operator()(V& p, V g, V* state, V& change) const {
    const D d;
    const V old = p;
    g = hn::Mul(g, scale);
    if constexpr (is_decoupled) p = hn::Mul(p, decay);
    else g = fused(d, decay, p, g);
    state[0] = fused(d, beta1, state[0], hn::Mul(rest1, g));
    state[1] = fused(d, beta2, state[1], hn::Mul(rest2, hn::Mul(g, g)));
    const V ratio = hn::Div(state[0], fused(d, hn::Sqrt(state[1]), square_scale, eps));
    change = hn::IfThenElse(hn::Eq(p, old), hn::Mul(minus_step, ratio), hn::Set(d, T(1)));
    p = fused(d, minus_step, ratio, p);
  }
};

const OptionalOut& state_of(const SgdUpdate& k, int) { return k.momentum_buffer; }
const Out& state_of(const AdamUpdate& k, int i) { return i == 0 ? k.mean : k.square; }

template <class D>
HWY_INLINE std::int64_t count_non_finite(D d, hn::Vec<D> v) {
  return std::int64_t(hn::CountTrue(d, hn::Not(hn::IsFinite(v))));
}

// Everything in T.
template <bool variant, class T, class K>
void update_plain(const K& k) {
  std::atomic<std::int64_t> num_non_finite = 0;  // a sum of integers: the same in any order
  parallel_for(k.out.numel(), kPiece, [&](std::int64_t begin, std::int64_t end) {
    using S = Step<K, variant, T>;
    const S step(k);
    const hn::ScalableTag<T> d;
    const T* grad = k.grad.template data<T>() + begin;
    T* parameter = k.out.template data<T>() + begin;
    T* states[2] = {};
    for (int s = 0; s < S::num_states; ++s) states[s] = state_of(k, s).template data<T>() + begin;
    std::int64_t non_finite = 0;
    for_vectors<2>(d, end - begin, [&](auto, std::int64_t i, auto lanes) HWY_ATTR {
      auto p = lanes.load(d, parameter + i);
      hn::Vec<hn::ScalableTag<T>> state[2], change;
      for (int s = 0; s < S::num_states; ++s) state[s] = lanes.load(d, states[s] + i);
      step(p, lanes.load(d, grad + i), state, change);
      for (int s = 0; s < S::num_states; ++s) lanes.store(state[s], d, states[s] + i);
      lanes.store(p, d, parameter + i);
      non_finite += count_non_finite(d, lanes.keep(d, p));
    });
    num_non_finite += non_finite;
  });
  if (k.num_non_finite.has_bytes()) *k.num_non_finite.template data<std::int64_t>() += num_non_finite;
}

// A tensor of S or f32 that is read and written as f32 vectors.
template <class S>
struct Operand {
  std::byte* address;
  bool is_wide;

  Operand(DType dtype, const std::byte* at) : address(const_cast<std::byte*>(at)), is_wide(dtype == DType::f32) {}
  S* half() const { return reinterpret_cast<S*>(address); }
  float* wide() const { return reinterpret_cast<float*>(address); }

  template <class D, class L>
  HWY_INLINE hn::Vec<D> load(D d, std::int64_t i, L lanes) const {
    return is_wide ? lanes.load(d, wide() + i) : lanes.load(d, half() + i);
  }
  // A finite value that f16 would make infinite, as its largest number. (bf16 reaches as far as f32.)
  template <class D>
  HWY_INLINE hn::Vec<D> saturated(D d, hn::Vec<D> v) const {
    if constexpr (std::is_same_v<S, f16>) {
      const auto most = hn::Set(d, 65504.0f);
      if (!is_wide) return hn::IfThenElse(hn::IsFinite(v), hn::Min(hn::Max(v, hn::Neg(most)), most), v);
    }
    return v;
  }
  // `random`: null to round to nearest, else the words of the elements, of which 16 bits from `shift` on are used.
  template <int shift, class D, class L>
  HWY_INLINE void store(hn::Vec<D> v, D d, std::int64_t i, L lanes, const std::uint32_t* random) const {
    if (is_wide) lanes.store(v, d, wide() + i);
    else if (random == nullptr) lanes.store(v, d, half() + i);
    else simd::store_stochastic<shift>(v, d, half() + i, lanes, random);
  }
};

constexpr std::int64_t kTile = 512;  // elements whose random words are drawn together

// Parameters of S.
template <bool variant, class S, class K>
void update_half(const K& k) {
  std::atomic<std::int64_t> num_lost = 0, num_non_finite = 0;
  RandomKey state_key = k.rounding.key;
  ++state_key.call;
  const simd::RandomWords parameter_words(k.rounding.key), state_words(state_key);
  using Arithmetic = Step<K, variant, float>;
  const bool has_master = k.master.defined(), is_stochastic = k.rounding.mode == Rounding::stochastic;
  bool rounds_state = false;
  for (int s = 0; s < Arithmetic::num_states; ++s) rounds_state = rounds_state || state_of(k, s).dtype() != DType::f32;
  const bool draws_parameter = is_stochastic && !has_master, draws_state = is_stochastic && rounds_state;
  parallel_for(k.out.numel(), kPiece, [&](std::int64_t begin, std::int64_t end) {
    const hn::ScalableTag<float> d;
    using V = hn::Vec<hn::ScalableTag<float>>;
    HWY_ALIGN std::uint32_t words[2][kTile];
    const Arithmetic step(k);
    const Operand<S> grad(k.grad.dtype(), k.grad.address()), parameter(k.out.dtype(), k.out.address());
    const Operand<S> source = has_master ? Operand<S>(DType::f32, k.master.address()) : parameter;
    const Operand<S> states[2] = {Operand<S>(state_of(k, 0).dtype(), state_of(k, 0).address()), Operand<S>(state_of(k, 1).dtype(), state_of(k, 1).address())};
    std::int64_t lost = 0, non_finite = 0;
    for (std::int64_t tile = begin; tile < end; tile += kTile) {
      const std::int64_t n = std::min(kTile, end - tile);
      const std::uint64_t element = std::uint64_t(k.rounding.first_element + tile);
      if (draws_parameter) parameter_words.fill(element, words[0], n);
      if (draws_state) state_words.fill(element, words[1], n);
      for_vectors(d, n, [&](std::int64_t i, auto lanes) HWY_ATTR {
        const std::int64_t at = tile + i;
        const V old = source.load(d, at, lanes);
        V p = old, change, state[2];
        for (int s = 0; s < Arithmetic::num_states; ++s) state[s] = states[s].load(d, at, lanes);
        step(p, grad.load(d, at, lanes), state, change);
        const std::uint32_t* state_random = draws_state ? words[1] + i : nullptr;
        for (int s = 0; s < Arithmetic::num_states; ++s) state[s] = states[s].saturated(d, state[s]);
        if constexpr (Arithmetic::num_states > 0) states[0].template store<0>(state[0], d, at, lanes, state_random);
        if constexpr (Arithmetic::num_states > 1) states[1].template store<16>(state[1], d, at, lanes, state_random);
        parameter.template store<0>(p, d, at, lanes, draws_parameter ? words[0] + i : nullptr);
        const V stored = parameter.load(d, at, lanes);
        if (has_master) lanes.store(p, d, source.wide() + at);
        else p = stored;
        const auto is_lost = hn::And(hn::Ne(lanes.keep(d, change), hn::Zero(d)), hn::Eq(p, old));
        lost += std::int64_t(hn::CountTrue(d, is_lost));
        non_finite += count_non_finite(d, lanes.keep(d, stored));
      });
    }
    num_lost += lost;
    num_non_finite += non_finite;
  });
  if (k.num_lost.has_bytes()) *k.num_lost.template data<std::int64_t>() += num_lost;
  if (k.num_non_finite.has_bytes()) *k.num_non_finite.template data<std::int64_t>() += num_non_finite;
}

template <bool variant, class K>
void update(const K& k) {
  dispatch_floating(k.out.dtype(), k.name, [&](auto t) {
    using S = decltype(t);
    if constexpr (is_half<S>) update_half<variant, S>(k);
    else update_plain<variant, S>(k);
  });
}

bool is_shut(const OptionalIn& guard) { return guard.has_bytes() && !std::isfinite(*guard.data<double>()); }

}  // namespace

void run(Cpu, const SgdUpdate& k) {
  if (!k.out.has_bytes() || is_shut(k.guard)) return;
  k.momentum_buffer.defined() ? update<true>(k) : update<false>(k);
}

void run(Cpu, const AdamUpdate& k) {
  if (!k.out.has_bytes() || is_shut(k.guard)) return;
  k.is_decoupled ? update<true>(k) : update<false>(k);
}

void run(Cpu, const SgdUpdates& k) {
  for (const SgdUpdate& update : k.updates) run(Cpu{}, update);
}

void run(Cpu, const AdamUpdates& k) {
  for (const AdamUpdate& update : k.updates) run(Cpu{}, update);
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
