// Parameter updates in place, and what surrounds them: zeroing and scaling.
// Fused multiply-add, divide and square root are correctly rounded everywhere and stand where they are written, so
// every backend, and any cut of a parameter into pieces, gives the same bits; subnormals count as zero.
// `grad_scale` multiplies the gradient on its way in: clipping and unscaling need no pass of their own.
//
// Parameters, gradients and state of 16 bits are widened to f32 as they are read; the update is f32 arithmetic and is
// rounded when it is stored. A 16-bit parameter may have an f32 gradient, f32 state and an f32 master copy. With a master
// the update happens there, and the parameter is the master rounded to nearest. f64 parameters have f64 everywhere.
#pragma once

#include <refrain/core/random.h>
#include <refrain/kernels/kernel.h>

#include <span>

namespace refrain {

enum class Rounding : std::uint8_t { nearest, stochastic };

// How 16-bit results are stored (f32 and f64 results are not rounded again). Stochastic rounding goes up with the
// probability that is right on average, see stochastic_rounding.h. Element i of the parameter draws the lower 16 bits of
// word first_element + i of `key`; state draws from the stream after it (call + 1): the first state tensor the lower, the
// second the upper 16 bits of the same word.
struct UpdateRounding {
  Rounding mode = Rounding::nearest;
  RandomKey key = {};              // one for each parameter and step
  std::int64_t first_element = 0;  // where `out` begins in the whole parameter: any cut into shards rounds alike
};

// g = grad · grad_scale + weight_decay · p;  m = momentum · m + g;  p -= lr · (nesterov ? g + momentum · m : m).
// Without a momentum buffer p -= lr · g. (Sutskever et al. 2013 as PyTorch writes it, without dampening.)
struct SgdUpdate {
  static constexpr std::string_view name = "sgd_update";
  In grad;                      // the parameter's dtype, or f32 for a 16-bit parameter
  double lr, weight_decay, momentum, grad_scale;
  bool nesterov;
  Out out;                      // parameter, in place
  OptionalOut momentum_buffer;  // zeros before the first step; the parameter's dtype, or f32 for a 16-bit parameter
  OptionalOut master = {};      // f32, in place; for 16-bit parameters only
  // i64, one element: to it is added how many elements had an update that is not zero and yet kept their value (that of
  // the master, where there is one). For 16-bit parameters only.
  OptionalOut num_lost = {};
  OptionalOut num_non_finite = {};  // i64, one element: added to it is how many elements are infinite or NaN now
  UpdateRounding rounding = {};
  // f64, one element (kernels/reduce makes it): where it is infinite or NaN nothing is updated and nothing counted.
  OptionalIn guard = {};
};
void validate(const SgdUpdate& k);
Cost cost(const SgdUpdate& k);
void run(Cpu, const SgdUpdate& k);
void run(Cuda, const SgdUpdate& k);

// Adam (Kingma, Ba 2015) and AdamW (Loshchilov, Hutter 2019): with g = grad · grad_scale,
//   Adam: g += weight_decay · p;   AdamW: p *= 1 - lr · weight_decay
//   m = beta1 · m + (1 - beta1) · g;  v = beta2 · v + (1 - beta2) · g²
//   p -= lr / (1 - beta1^step) · m / (sqrt(v) / sqrt(1 - beta2^step) + eps)
// The step uses m and v before they are rounded for storage (f16 state saturates at 65,504); betas' powers are f64, and eps is f32: 1e-8 is not 0.
struct AdamUpdate {
  static constexpr std::string_view name = "adam_update";
  In grad;                      // the parameter's dtype, or f32 for a 16-bit parameter
  double lr, beta1, beta2, eps, weight_decay, grad_scale;
  bool is_decoupled;            // AdamW
  std::int64_t step;            // 1 at the first update
  Out out;                      // parameter, in place
  Out mean, square;             // m and v, in place, zeros before the first step; dtypes as SgdUpdate's momentum_buffer
  OptionalOut master = {};      // as in SgdUpdate
  OptionalOut num_lost = {}, num_non_finite = {};  // as in SgdUpdate
  UpdateRounding rounding = {};
  OptionalIn guard = {};        // as in SgdUpdate
};
void validate(const AdamUpdate& k);
Cost cost(const AdamUpdate& k);
void run(Cpu, const AdamUpdate& k);
void run(Cuda, const AdamUpdate& k);

// Many updates on one device, in a few launches on CUDA: what each does alone, in any order. At least one; they may share
// counters and a guard, and no other tensor.
struct SgdUpdates {
  static constexpr std::string_view name = "sgd_updates";
  std::span<const SgdUpdate> updates;
  Out out = updates.front().out;
};
void validate(const SgdUpdates& k);
Cost cost(const SgdUpdates& k);
void run(Cpu, const SgdUpdates& k);
void run(Cuda, const SgdUpdates& k);

struct AdamUpdates {
  static constexpr std::string_view name = "adam_updates";
  std::span<const AdamUpdate> updates;
  Out out = updates.front().out;
};
void validate(const AdamUpdates& k);
Cost cost(const AdamUpdates& k);
void run(Cpu, const AdamUpdates& k);
void run(Cuda, const AdamUpdates& k);

// out = 0.
struct ZeroInPlace {
  static constexpr std::string_view name = "zero";
  Out out;                      // any dtype, contiguous
};
void validate(const ZeroInPlace& k);
Cost cost(const ZeroInPlace& k);
void run(Cpu, const ZeroInPlace& k);
void run(Cuda, const ZeroInPlace& k);

// out *= factor, rounded to nearest.
struct ScaleInPlace {
  static constexpr std::string_view name = "scale";
  double factor;
  Out out;
};
void validate(const ScaleInPlace& k);
Cost cost(const ScaleInPlace& k);
void run(Cpu, const ScaleInPlace& k);
void run(Cuda, const ScaleInPlace& k);

}  // namespace refrain
