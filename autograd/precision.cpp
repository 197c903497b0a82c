#include <refrain/autograd/ops/convert.h>
#include <refrain/autograd/precision.h>

#include <algorithm>
#include <array>

namespace refrain {

namespace {

constexpr std::array kModes = {Precision::f32_true, Precision::f16_mixed, Precision::bf16_mixed, Precision::f16_true, Precision::bf16_true};

// Products run in 16 bits: they cost the most and sum in f32 anyway. What exponentiates, divides or sums many values
// leaves f16's range too easily. The rest is cheap and goes along.
constexpr OpRule kTable[] = {
    {"linear", OpPrecision::compute, 1},
    {"matmul", OpPrecision::compute, 2},
    {"conv2d", OpPrecision::compute, 1},
    {"attention", OpPrecision::compute, 3},
    {"linear_cross_entropy", OpPrecision::compute, 1},
    {"mlp", OpPrecision::compute, 1},
    // Their readers are products. Statistics are f32 in every mode.
    {"layer_norm", OpPrecision::writes},
    {"batch_norm", OpPrecision::writes},
    {"patch_embedding", OpPrecision::writes},
    {"exp", OpPrecision::f32},
    {"log", OpPrecision::f32},
    {"pow", OpPrecision::f32},
    {"square", OpPrecision::f32},
    {"reciprocal", OpPrecision::f32},
    {"rsqrt", OpPrecision::f32},
    {"softmax", OpPrecision::f32},
    {"log_softmax", OpPrecision::f32},
    {"sum", OpPrecision::f32},
    {"mean", OpPrecision::f32},
    // These read f32 and 16-bit operands side by side and write f32, in any mode.
    {"add", OpPrecision::inputs},
    {"sub", OpPrecision::inputs},
    {"mul", OpPrecision::inputs},
    {"div", OpPrecision::inputs},
    {"dropout_add", OpPrecision::inputs},
    {"concat", OpPrecision::inputs},
    {"where", OpPrecision::inputs},
    // Losses of 16-bit values are f32, in any mode.
    {"cross_entropy", OpPrecision::inputs},
    {"mse_loss", OpPrecision::inputs},
    {"dropout", OpPrecision::inputs},
    {"stochastic_depth", OpPrecision::inputs},
    {"embedding", OpPrecision::inputs},
    {"max", OpPrecision::inputs},
    {"neg", OpPrecision::inputs},
    {"abs", OpPrecision::inputs},
    {"sqrt", OpPrecision::inputs},
    {"sin", OpPrecision::inputs},
    {"cos", OpPrecision::inputs},
    {"tanh", OpPrecision::inputs},
    {"sigmoid", OpPrecision::inputs},
    {"silu", OpPrecision::inputs},
    {"relu", OpPrecision::inputs},
    {"gelu", OpPrecision::inputs},
    {"slice", OpPrecision::inputs},
    {"select", OpPrecision::inputs},
    {"permute", OpPrecision::inputs},
    {"transpose", OpPrecision::inputs},
    {"reshape", OpPrecision::inputs},
    {"expand", OpPrecision::inputs},
    {"contiguous", OpPrecision::inputs},
    {"convert", OpPrecision::inputs},
};

bool can_cast(const Tensor& t) { return t.defined() && (is_16_bit(t.dtype()) || t.dtype() == DType::f32); }

}  // namespace

std::string_view name_of(Precision precision) {
  switch (precision) {
    case Precision::f32_true: return "32-true";
    case Precision::f16_mixed: return "16-mixed";
    case Precision::bf16_mixed: return "bf16-mixed";
    case Precision::f16_true: return "16-true";
    case Precision::bf16_true: return "bf16-true";
  }
  return "?";
}

Precision parse_precision(std::string_view word) {
  for (const Precision precision : kModes) {
    if (word == name_of(precision)) return precision;
  }
  fail("precision must be 32-true, 16-mixed, bf16-mixed, 16-true or bf16-true, got '", word, "'");
}

DType compute_dtype(Precision precision) {
  switch (precision) {
    case Precision::f32_true: return DType::f32;
    case Precision::f16_mixed:
    case Precision::f16_true: return DType::f16;
    case Precision::bf16_mixed:
    case Precision::bf16_true: return DType::bf16;
  }
  fail<InternalError>("unknown precision");
}

DType parameter_dtype(Precision precision) { return is_mixed(precision) ? DType::f32 : compute_dtype(precision); }

DType autocast_dtype_or(DType own) {
  const std::optional<DType> autocast = detail::autograd_state().autocast;
  return autocast && (own == DType::f32 || is_16_bit(own)) ? *autocast : own;
}

std::span<const OpRule> precision_table() { return kTable; }

OpRule precision_rule(std::string_view op) {
  const auto found = std::find_if(std::begin(kTable), std::end(kTable), [&](const OpRule& rule) { return rule.op == op; });
  return found == std::end(kTable) ? OpRule{op, OpPrecision::inputs} : *found;
}

namespace detail {

bool InputCast::is_wanted(std::string_view op) {
  const AutogradState& state = autograd_state();
  if (!state.autocast || state.frame != nullptr) return false;
  const OpPrecision precision = precision_rule(op).precision;
  return precision == OpPrecision::compute || precision == OpPrecision::f32;
}

InputCast::InputCast(std::string_view op, std::span<const Tensor* const> inputs) {
  const OpRule rule = precision_rule(op);
  num_activations_ = rule.precision == OpPrecision::compute ? rule.activations : int(inputs.size());
  lists_.reserve(inputs.size());
  if (rule.precision == OpPrecision::compute) dtype_ = *autograd_state().autocast;
}

Tensor InputCast::operator()(const Tensor& t) { return position_++ < num_activations_ && can_cast(t) ? convert(t, dtype_) : t; }

std::span<const Tensor> InputCast::operator()(std::span<const Tensor> list) {
  std::vector<Tensor>& converted = lists_.emplace_back();
  for (const Tensor& t : list) converted.push_back((*this)(t));
  return converted;
}

}  // namespace detail

}  // namespace refrain
