// Precision modes, and the one table that says what each op does in a mixed one.
//
//   PrecisionScope scope(Precision::bf16_mixed);   // of this thread, until it ends
//   Vit model(config);                             // parameters in f32; in 16 bits in `*-true` modes
//   Tensor loss = cross_entropy(model(x), t);      // products in bf16; in `*-true` modes ops follow their inputs
//   backward(loss);                                // inside the scope or after it: precision is on the tape
#pragma once

#include <refrain/autograd/session.h>
#include <refrain/core/dtype.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace refrain {

enum class Precision : std::uint8_t {
  f32_true,    // 32-true: everything in f32
  f16_mixed,   // 16-mixed: f32 parameters, products in f16; wants loss scaling
  bf16_mixed,  // bf16-mixed: f32 parameters, products in bf16
  f16_true,    // 16-true: everything in f16, which ends at 65,504
  bf16_true    // bf16-true: everything in bf16; wants stochastic rounding
};

std::string_view name_of(Precision precision);
// "32-true", "16-mixed", "bf16-mixed", "16-true" or "bf16-true". Throws InvalidArgument for other words.
Precision parse_precision(std::string_view word);

// What parameters, their gradients and their optimizer state are kept in.
DType parameter_dtype(Precision precision);
// What products run in.
DType compute_dtype(Precision precision);
constexpr bool is_mixed(Precision precision) { return precision == Precision::f16_mixed || precision == Precision::bf16_mixed; }

// While the scope lives, modules that the calling thread builds have parameters of the mode's dtype (unless a CreationScope
// names another), and its ops run in the mode. Regions replay in the mode of their first run, wherever backward is called;
// backward itself goes by the dtypes on the tape.
class PrecisionScope {
 public:
  explicit PrecisionScope(Precision precision)
      : autocast_(is_mixed(precision) ? std::optional(compute_dtype(precision)) : std::nullopt),
        old_parameter_dtype_(detail::autograd_state().parameter_dtype) {
    detail::autograd_state().parameter_dtype = parameter_dtype(precision);
  }
  ~PrecisionScope() { detail::autograd_state().parameter_dtype = old_parameter_dtype_; }
  PrecisionScope(const PrecisionScope&) = delete;
  PrecisionScope& operator=(const PrecisionScope&) = delete;

 private:
  detail::AutocastScope autocast_;
  DType old_parameter_dtype_;
};

// The dtype a mixed mode gives a result whose inputs are `own`: 16 bits inside the scope of a mixed mode, else `own`.
// f64 stays f64, so that gradients can be checked inside any scope.
DType autocast_dtype_or(DType own);

// What an op does in a mixed mode.
enum class OpPrecision : std::uint8_t {
  compute,  // activations are rounded to 16 bits; weights stay f32 and are rounded for the op's life
  writes,   // reads its inputs as they are, computes in f32, writes 16 bits
  f32,      // inputs are widened to f32, so is the result
  inputs    // follows its inputs
};

struct OpRule {
  std::string_view op;
  OpPrecision precision;
  int activations = 0;  // compute: the first inputs, which are rounded; those after them are weights
};

// The whole table, for documentation and tests.
std::span<const OpRule> precision_table();
// An op that the table does not list follows its inputs; so do an embedder's own ops.
OpRule precision_rule(std::string_view op);

}  // namespace refrain
