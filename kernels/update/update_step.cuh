// The arithmetic of an update on one element: operation for operation that of update_cpu.cpp, each result with subnormals
// flushed as the CPU does, so that both give the same bits.
#pragma once

#include <refrain/kernels/common/cuda/math.cuh>
#include <refrain/kernels/update/update.h>

#include <cmath>

namespace refrain::update_kernels {

template <class T>
__device__ __forceinline__ T mul(T a, T b) {
  return cuda::math::flushed(a * b);
}
template <class T>
__device__ __forceinline__ T fused(T a, T b, T c) {
  return cuda::math::flushed(cuda::math::fused(a, b, c));
}

template <class T>
struct SgdStep {
  static constexpr int kStates = 1;
  T scale, decay, momentum, minus_lr;
  bool nesterov, has_momentum;

  SgdStep() = default;
  explicit SgdStep(const SgdUpdate& k)
      : scale(T(k.grad_scale)),
        decay(T(k.weight_decay)),
        momentum(T(k.momentum)),
        minus_lr(T(-k.lr)),
        nesterov(k.nesterov),
        has_momentum(k.momentum_buffer.defined()) {}

  // `change` gets what is not zero where the update is not.
  __device__ __forceinline__ void operator()(T& p, T g, T (&state)[1], T& change) const {
    g = fused(decay, p, mul(g, scale));
    if (has_momentum) {
      state[0] = fused(momentum, state[0], g);
      g = nesterov ? fused(momentum, state[0], g) : state[0];
    }
    p = fused(minus_lr, g, p);
    change = mul(minus_lr, g);
  }
};

template <class T>
struct AdamStep {
  static constexpr int kStates = 2;
  T scale, decay, beta1, beta2, rest1, rest2, square_scale, eps, minus_step;
  bool is_decoupled;

  AdamStep() = default;
  explicit AdamStep(const AdamUpdate& k)
      : scale(T(k.grad_scale)),
        decay(T(k.is_decoupled ? 1 - k.lr * k.weight_decay : k.weight_decay)),
        beta1(T(k.beta1)),
        beta2(T(k.beta2)),
        rest1(T(1 - k.beta1)),
        rest2(T(1 - k.beta2)),
        square_scale(T(1 / std::sqrt(1 - std::pow(k.beta2, double(k.step))))),
        eps(T(k.eps)),
        minus_step(T(-k.lr / (1 - std::pow(k.beta1, double(k.step))))),
        is_decoupled(k.is_decoupled) {}

  __device__ __forceinline__ void operator()(T& p, T g, T (&state)[2], T& change) const {
    using cuda::math::flushed;
    const T old = p;
    g = mul(g, scale);
    if (is_decoupled)
      p = mul(p, decay);
    else
      g = fused(decay, p, g);
    state[0] = fused(beta1, state[0], mul(rest1, g));
    state[1] = fused(beta2, state[1], mul(rest2, mul(g, g)));
    const T ratio = flushed(cuda::math::divide(state[0], fused(cuda::math::root(state[1]), square_scale, eps)));
    change = p == old ? mul(minus_step, ratio) : T(1);
    p = fused(minus_step, ratio, p);
  }
};

}  // namespace refrain::update_kernels
