// Parameter updates in place, and what surrounds them: zeroing and scaling.
// Fused multiply-add, divide and square root are correctly rounded everywhere and stand where they are written, so
// every backend, and any cut of a parameter into pieces, gives the same bits; subnormals count as zero.
// `grad_scale` multiplies the gradient on its way in: clipping and unscaling need no pass of their own.
#pragma once

#include <refrain/kernels/kernel.h>

namespace refrain {

// g = grad · grad_scale + weight_decay · p;  m = momentum · m + g;  p -= lr · (nesterov ? g + momentum · m : m).
// Without a momentum buffer p -= lr · g. (Sutskever et al. 2013 as PyTorch writes it, without dampening.)
struct SgdUpdate {
  static constexpr std::string_view name = "sgd_update";
  In grad;
  double lr, weight_decay, momentum, grad_scale;
  bool nesterov;
  Out out;                      // parameter, in place
  OptionalOut momentum_buffer;  // zeros before the first step
};
void validate(const SgdUpdate& k);
Cost cost(const SgdUpdate& k);
void run(Cpu, const SgdUpdate& k);

// Adam (Kingma, Ba 2015) and AdamW (Loshchilov, Hutter 2019): with g = grad · grad_scale,
//   Adam: g += weight_decay · p;   AdamW: p *= 1 - lr · weight_decay
//   m = beta1 · m + (1 - beta1) · g;  v = beta2 · v + (1 - beta2) · g²
//   p -= lr / (1 - beta1^step) · m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
struct AdamUpdate {
  static constexpr std::string_view name = "adam_update";
  In grad;
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  bool is_decoupled;            // AdamW
  std::int64_t step;            // 1 at the first update
  Out out;                      // parameter, in place
  Out mean, square;             // m and v, in place, zeros before the first step
};
void validate(const AdamUpdate& k);
Cost cost(const AdamUpdate& k);
void run(Cpu, const AdamUpdate& k);

// out = 0.
struct ZeroInPlace {
  static constexpr std::string_view name = "zero";
  Out out;                      // any dtype, contiguous
};
void validate(const ZeroInPlace& k);
Cost cost(const ZeroInPlace& k);
void run(Cpu, const ZeroInPlace& k);

// out *= factor.
struct ScaleInPlace {
  static constexpr std::string_view name = "scale";
  double factor;
  Out out;
};
void validate(const ScaleInPlace& k);
Cost cost(const ScaleInPlace& k);
void run(Cpu, const ScaleInPlace& k);

}  // namespace refrain
