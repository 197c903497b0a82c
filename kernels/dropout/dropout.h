// Dropout from counter-based random numbers: the mask is a function of the key and the element's index, so backward
// is the same kernel applied to the gradient and nothing is stored. f64, f32, f16 and bf16; 16-bit values are computed with
// in f32 and rounded once as they are stored.
#pragma once

#include <refrain/core/random.h>
#include <refrain/kernels/kernel.h>

namespace refrain {

// A word below this drops its element: p·2^32, for p in [0, 1).
std::uint32_t drop_threshold(double p);

// out[i] = word(first_element + i) >= p·2^32 ? x[i] / (1 - p) : 0, plus residual[i] if there is one; p = 1 drops all
// (Srivastava et al., "Dropout", 2014, inverted). out may be x. x, residual
// and out share a dtype, or are f32 and one 16-bit type in any combination.
struct Dropout {
  static constexpr std::string_view name = "dropout";
  In x;                      // contiguous
  OptionalIn residual = {};  // contiguous, x's shape
  double p;                  // in [0, 1]
  RandomKey key;
  std::int64_t first_element;
  Out out;  // contiguous, x's shape
};
void validate(const Dropout&);
Cost cost(const Dropout&);
void run(Cpu, const Dropout&);
void run(Cuda, const Dropout&);

// Drops whole samples (Huang et al., "Deep networks with stochastic depth", 2016): sample b of dim 0 is kept, and
// divided by 1 - p, when word(first_sample + b) >= p·2^32.
struct StochasticDepth {
  static constexpr std::string_view name = "stochastic_depth";
  In x;      // contiguous [B, …]
  double p;  // in [0, 1]
  RandomKey key;
  std::int64_t first_sample;
  Out out;  // contiguous, x's shape
};
void validate(const StochasticDepth&);
Cost cost(const StochasticDepth&);
void run(Cpu, const StochasticDepth&);
void run(Cuda, const StochasticDepth&);

}  // namespace refrain
