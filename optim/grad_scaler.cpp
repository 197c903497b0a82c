#include <refrain/optim/clip_grad.h>
#include <refrain/optim/grad_scaler.h>

#include <algorithm>
#include <cmath>

namespace refrain {

namespace {

bool is_scale(double value) { return std::isfinite(value) && value > 0; }

GradScalerOptions checked(const GradScalerOptions& o) {
  if (o.mode == ScalerMode::off) return o;
  check(is_scale(o.init_scale), "grad_scaler: init_scale must be positive and finite, got ", o.init_scale);
  // The update multiplies by the inverse in f32, where it must not vanish.
  check(o.init_scale >= 0x1p-100 && o.init_scale <= 0x1p100, "grad_scaler: init_scale must be 2^-100 … 2^100, got ", o.init_scale);
  if (o.mode == ScalerMode::fixed) return o;
  check(std::isfinite(o.growth) && o.growth > 1, "grad_scaler: growth must be finite and above 1, got ", o.growth);
  check(o.backoff > 0 && o.backoff < 1, "grad_scaler: backoff must be in (0, 1), got ", o.backoff);
  check(o.growth_interval >= 1, "grad_scaler: growth_interval must be at least 1, got ", o.growth_interval);
  check(o.min_scale >= 0x1p-100, "grad_scaler: min_scale must be at least 2^-100, got ", o.min_scale);
  check(o.max_scale <= 0x1p100, "grad_scaler: max_scale must be at most 2^100, got ", o.max_scale);
  check(o.min_scale <= o.init_scale && o.init_scale <= o.max_scale, "grad_scaler: init_scale must be in [min_scale, max_scale] = [", o.min_scale, ", ",
        o.max_scale, "], got ", o.init_scale);
  return o;
}

}  // namespace

std::string_view name_of(ScalerMode mode) {
  switch (mode) {
    case ScalerMode::off: return "off";
    case ScalerMode::fixed: return "static";
    case ScalerMode::dynamic: return "dynamic";
  }
  return "?";
}

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(checked(options)), scale_(options.mode == ScalerMode::off ? 1 : options.init_scale) {}

GradScaler::Unscaled GradScaler::check(std::span<const Tensor> parameters) const {
  return unscaled(refrain::grad_norm(parameters));
}

GradScaler::Unscaled GradScaler::unscaled(const GradNorm& measured) const {
  return {measured.is_finite(), measured.norm / scale_, 1 / scale_, measured.first_non_finite};
}

bool GradScaler::update(bool is_finite) {
  const bool is_dynamic = options_.mode == ScalerMode::dynamic;
  if (is_finite) {
    num_skipped_in_a_row_ = num_skipped_at_lowest_ = 0;
    ++num_clean_steps_;
    if (is_dynamic && num_clean_steps_ >= options_.growth_interval) {
      scale_ = std::min(scale_ * options_.growth, options_.max_scale);
      num_clean_steps_ = 0;
    }
    return true;
  }
  ++num_skipped_;
  ++num_skipped_in_a_row_;
  num_clean_steps_ = 0;
  if (!is_dynamic || scale_ <= options_.min_scale) ++num_skipped_at_lowest_;
  if (is_dynamic) scale_ = std::max(scale_ * options_.backoff, options_.min_scale);
  return false;
}

std::map<std::string, double> GradScaler::state_dict() const {
  return {{"scale", scale_},
          {"num_clean_steps", double(num_clean_steps_)},
          {"num_skipped", double(num_skipped_)},
          {"num_skipped_in_a_row", double(num_skipped_in_a_row_)},
          {"num_skipped_at_lowest", double(num_skipped_at_lowest_)}};
}

void GradScaler::load_state(const std::map<std::string, double>& state) {
  const std::map<std::string, double> own = state_dict();
  for (const auto& entry : state) refrain::check(own.contains(entry.first), "grad_scaler: state has unexpected '", entry.first, "'");
  const auto value_of = [&](const std::string& key) {
    const auto found = state.find(key);
    refrain::check(found != state.end(), "grad_scaler: state has no '", key, "'");
    return found->second;
  };
  const auto count_of = [&](const std::string& key) {
    const double value = value_of(key);
    refrain::check(value >= 0 && value <= 0x1p53 && value == std::floor(value), "grad_scaler: '", key, "' must be a count, got ", value);
    return std::int64_t(value);
  };
  const double scale = value_of("scale");
  const bool is_dynamic = options_.mode == ScalerMode::dynamic;
  const double low = is_dynamic ? options_.min_scale : scale_, high = is_dynamic ? options_.max_scale : scale_;
  refrain::check(scale >= low && scale <= high, "grad_scaler: scale must be in [", low, ", ", high, "], got ", scale);
  const std::int64_t clean = count_of("num_clean_steps"), skipped = count_of("num_skipped"), in_a_row = count_of("num_skipped_in_a_row"),
                     at_lowest = count_of("num_skipped_at_lowest");
  scale_ = scale, num_clean_steps_ = clean, num_skipped_ = skipped, num_skipped_in_a_row_ = in_a_row, num_skipped_at_lowest_ = at_lowest;
}

}  // namespace refrain
