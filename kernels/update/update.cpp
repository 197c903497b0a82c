// Validation and cost of the updates.
#include <refrain/kernels/update/update.h>

#include <cmath>

namespace refrain {

namespace {

void check_like_parameter(std::string_view kernel, std::string_view argument, const TensorArg& arg, const TensorArg& parameter) {
  check_shape(kernel, argument, arg, parameter.shape());
  check_dtype(kernel, argument, arg, parameter.dtype());
  check_contiguous(kernel, argument, arg);
}

template <class K>
void check_parameter(const K& k) {
  check_floating(K::name, "parameter", k.out);
  check_contiguous(K::name, "parameter", k.out);
  check_like_parameter(K::name, "grad", k.grad, k.out);
}

}  // namespace

void validate(const SgdUpdate& k) {
  check_parameter(k);
  if (k.momentum_buffer.defined()) check_like_parameter(k.name, "momentum_buffer", k.momentum_buffer, k.out);
  check(k.momentum_buffer.defined() || (k.momentum == 0 && !k.nesterov), k.name, ": momentum ", k.momentum, " needs a momentum_buffer");
}

Cost cost(const SgdUpdate& k) {
  return {(k.momentum_buffer.defined() ? 8.0 : 5.0) * double(k.out.numel()), (k.momentum_buffer.defined() ? 5.0 : 3.0) * k.out.bytes()};
}

void validate(const AdamUpdate& k) {
  check_parameter(k);
  check_like_parameter(k.name, "mean", k.mean, k.out);
  check_like_parameter(k.name, "square", k.square, k.out);
  check(k.beta1 >= 0 && k.beta1 < 1 && k.beta2 >= 0 && k.beta2 < 1, k.name, ": betas must be in [0, 1), got ", k.beta1, " and ", k.beta2);
  check(k.eps >= 0, k.name, ": eps must not be negative, got ", k.eps);
  check(k.step >= 1, k.name, ": step must be at least 1, got ", k.step);
}

Cost cost(const AdamUpdate& k) { return {15.0 * double(k.out.numel()), 7.0 * k.out.bytes()}; }

void validate(const ZeroInPlace& k) { check_contiguous(k.name, "out", k.out); }

Cost cost(const ZeroInPlace& k) { return {0, k.out.bytes()}; }

void validate(const ScaleInPlace& k) {
  check_floating(k.name, "out", k.out);
  check_contiguous(k.name, "out", k.out);
}

Cost cost(const ScaleInPlace& k) { return {double(k.out.numel()), 2 * k.out.bytes()}; }

}  // namespace refrain
