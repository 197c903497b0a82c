// Loss scaling (Micikevicius et al., "Mixed precision training", 2018): f16 gradients below 2^-24 are zero and those above
// 65504 infinite, so the loss is multiplied by a scale before backward and gradients are divided by it afterwards. The
// dynamic scale grows while gradients stay finite and is halved when they do not, whose step is then left out.
//
//   backward(mul(loss, scaler.scale()))
//   const GradScaler::Unscaled grads = scaler.check(parameters);                 // true norm, before clipping
//   if (scaler.update(grads.is_finite)) optimizer.step(lr, grads.grad_scale * clip_factor(grads.grad_norm, max_norm));
//
// (with the grad_scale taken before update() moves the scale, as here). Gradients are read once, for norm and finiteness
// together, and never written: dividing by the scale happens inside the update, as clipping does.
#pragma once

#include <refrain/core/tensor.h>
#include <refrain/optim/clip_grad.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

namespace refrain {

enum class ScalerMode : std::uint8_t {
  off,      // scale 1
  fixed,    // `static`: init_scale for ever
  dynamic,
};
std::string_view name_of(ScalerMode mode);  // off, static, dynamic

struct GradScalerOptions {
  ScalerMode mode = ScalerMode::dynamic;
  double init_scale = 65536;
  double growth = 2;                   // > 1
  double backoff = 0.5;                // in (0, 1)
  std::int64_t growth_interval = 2000; // clean steps in a row until the scale grows
  // The scale stays inside [min_scale, max_scale]. Below 1 it helps losses that are sums, whose own gradients overflow.
  // 2^24 brings the least f16 subnormal's spacing to 1; far beyond it the f32 loss itself would overflow.
  double min_scale = 0x1p-14, max_scale = 0x1p24;
};

class GradScaler {
 public:
  // Throws InvalidArgument for options that are not finite, out of range, or whose bounds do not hold init_scale.
  explicit GradScaler(const GradScalerOptions& options = {});

  const GradScalerOptions& options() const { return options_; }
  // What the loss is to be multiplied by.
  double scale() const { return scale_; }

  struct Unscaled {
    bool is_finite = true;
    double grad_norm = 0;                // of the gradients divided by the scale; of no use when they are not finite
    double grad_scale = 1;               // what the update is to multiply gradients by: 1 / scale
    std::int64_t first_non_finite = -1;  // index of the first parameter with an infinite or NaN gradient
  };
  // One pass over the parameters' gradients (clip_grad.h); the scale is that of their backward. Changes nothing.
  Unscaled check(std::span<const Tensor> parameters) const;
  // The same for gradients that were measured elsewhere (GradMeasure in fused_update.h).
  Unscaled unscaled(const GradNorm& measured) const;

  // Ends a step: moves the scale and counts. Returns whether the step is to be applied, is_finite.
  bool update(bool is_finite);

  std::int64_t num_clean_steps() const { return num_clean_steps_; }  // since the scale last moved or a step was left out
  std::int64_t num_skipped() const { return num_skipped_; }          // steps left out so far
  std::int64_t num_skipped_in_a_row() const { return num_skipped_in_a_row_; }
  // Steps left out in a row that began at the lowest scale (with a scale that never moves, all in a row): halving did not
  // and will not help them.
  std::int64_t num_skipped_in_a_row_at_lowest_scale() const { return num_skipped_at_lowest_; }

  // Exact numbers: scale, num_clean_steps, num_skipped, num_skipped_in_a_row, num_skipped_at_lowest.
  std::map<std::string, double> state_dict() const;
  // Throws InvalidArgument, before anything is changed, for a missing or unknown entry, one that is no count, or a scale
  // that these options cannot have reached.
  void load_state(const std::map<std::string, double>& state);

 private:
  GradScalerOptions options_;
  double scale_;
  std::int64_t num_clean_steps_ = 0, num_skipped_ = 0, num_skipped_in_a_row_ = 0, num_skipped_at_lowest_ = 0;
};

}  // namespace refrain
