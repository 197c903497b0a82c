// Reductions. Sums have one fixed order that depends on shapes alone: blocks of a fixed size are summed in the
// accumulator type (f32 for f32, f16 and bf16), block sums are combined in order in double, and the result is rounded
// once. x must be contiguous. f64, f32, f16 and bf16.
#pragma once

#include <refrain/kernels/kernel.h>

#include <span>

namespace refrain {

// out = scale · Σ x over the dims in which out is broadcast to x (extent 1 in out, or missing in front).
struct Sum {
  static constexpr std::string_view name = "sum";
  In x;                      // contiguous
  double scale = 1;          // 1/n makes a mean
  Out out;                   // contiguous; x's dtype, or a 16-bit type for f32, or f32 for a 16-bit type
  OptionalOut scratch = {};  // [sum_scratch_numel(x.shape, out.shape)] of x's accumulator dtype; may be absent when that is 0
};
std::int64_t sum_scratch_numel(const Shape& x, const Shape& out);
void validate(const Sum&);
Cost cost(const Sum&);
void run(Cpu, const Sum&);
void run(Cuda, const Sum&);

// out[0] = Σ x², in double: a sum of squares of f32, f16 or bf16 cannot overflow.
struct SquaredNorm {
  static constexpr std::string_view name = "squared_norm";
  In x;         // contiguous
  Out out;      // f64, one element
  Out scratch;  // f64 [squared_norm_scratch_numel(x.numel)]
  OptionalOut guard = {};  // f64, one element: becomes NaN where out is infinite or NaN, and is kept elsewhere (kernels/update)
};
std::int64_t squared_norm_scratch_numel(std::int64_t numel);
void validate(const SquaredNorm&);
Cost cost(const SquaredNorm&);
void run(Cpu, const SquaredNorm&);
void run(Cuda, const SquaredNorm&);

// out[i] = Σ x[i]², the bits of a SquaredNorm for each, in a few launches on CUDA. At least one tensor.
struct SquaredNorms {
  static constexpr std::string_view name = "squared_norms";
  std::span<const In> x;  // contiguous
  Out out;                // f64 [x.size()]
  Out scratch;            // f64 [squared_norms_scratch_numel(x, out.target())]
};
std::int64_t squared_norms_scratch_numel(std::span<const In> x, DeviceKind target);
void validate(const SquaredNorms&);
Cost cost(const SquaredNorms&);
void run(Cpu, const SquaredNorms&);
void run(Cuda, const SquaredNorms&);

// The largest element along one dim and where it is first met. NaN is larger than everything.
struct Max {
  static constexpr std::string_view name = "max";
  In x;                      // contiguous, its extent along dim at least 1
  int dim;                   // counted from the front
  Out out;                   // x's shape without dim, contiguous
  OptionalOut indices = {};  // i64, the same shape
};
void validate(const Max&);
Cost cost(const Max&);
void run(Cpu, const Max&);
void run(Cuda, const Max&);

// out = 0 but for grad_out at the indices that Max found along dim.
struct MaxBackward {
  static constexpr std::string_view name = "max_backward";
  In grad_out, indices;  // x's shape without dim; i64 indices
  int dim;
  Out out;  // x's shape, contiguous
};
void validate(const MaxBackward&);
Cost cost(const MaxBackward&);
void run(Cpu, const MaxBackward&);
void run(Cuda, const MaxBackward&);

}  // namespace refrain
