// Says where the first infinity or NaN came from. Watching reads every result once more, so it is meant for repeating a
// step that went wrong: replay is exact, so the repeated step goes wrong in the same place.
//
//   FiniteWatch watch;
//   backward(model(x));
//   if (watch.finding()) std::cout << to_text(*watch.finding());
#pragma once

#include <refrain/core/context.h>
#include <refrain/core/tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace refrain {

// Infinities and NaNs among the values of a floating tensor; 0 without bytes.
std::int64_t count_non_finite(const Tensor& t);

struct ValueSummary {
  std::string what;                // "input 0", "grad_out"
  DType dtype = DType::f32;
  Shape shape;
  double least = 0, greatest = 0;  // of the finite values; least > greatest when there is none
  std::int64_t num_non_finite = 0;
};

struct NonFiniteFinding {
  std::string op, module;
  Phase phase = Phase::forward;
  ValueSummary result;              // what came out
  std::vector<ValueSummary> inputs; // what went in
};

// `linear in module 'blocks.3.mlp.fc1', forward: output f16 [8, 4] has 2 values that are not finite; input 0 …`
std::string to_text(const NonFiniteFinding& finding);

// Watches the ops and the backward passes of the calling thread while it lives, or until it has found what it looks for. Tensors without
// bytes are passed over.
class FiniteWatch {
 public:
  FiniteWatch();
  ~FiniteWatch();
  FiniteWatch(const FiniteWatch&) = delete;
  FiniteWatch& operator=(const FiniteWatch&) = delete;

  // The first result that was not finite though all that went into it was; else, where infinities or NaNs came from
  // outside, the first result they reached. Masks of −∞ are thereby passed over.
  const std::optional<NonFiniteFinding>& finding() const { return born_ ? born_ : reached_; }

  // For the engine: results that `op` has just made from the inputs.
  void look(std::string_view op, std::span<const Tensor> results, std::string_view result_name, std::span<const Tensor* const> inputs,
            std::string_view input_name);

 private:
  std::optional<NonFiniteFinding> born_, reached_;
  FiniteWatch* outer_;
};

}  // namespace refrain
