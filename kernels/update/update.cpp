// Validation and cost of the updates.
#include <refrain/kernels/update/update.h>

#include <cmath>

namespace refrain {

namespace {

// The parameter's shape, and its dtype or, beside a 16-bit parameter, f32.
void check_like_parameter(std::string_view kernel, std::string_view argument, const TensorArg& arg, const TensorArg& parameter) {
  check_shape(kernel, argument, arg, parameter.shape());
  if (!is_16_bit(parameter.dtype()) || arg.dtype() != DType::f32) check_dtype(kernel, argument, arg, parameter.dtype());
  check_contiguous(kernel, argument, arg);
}

template <class K>
void check_parameter(const K& k) {
  check_floating(K::name, "parameter", k.out);
  check_contiguous(K::name, "parameter", k.out);
  check_like_parameter(K::name, "grad", k.grad, k.out);
  const bool is_half_parameter = is_16_bit(k.out.dtype());
  check(is_half_parameter || !k.master.defined(), K::name, ": a master copy belongs to a 16-bit parameter, got one for ", k.out.dtype());
  check(is_half_parameter || !k.num_lost.defined(), K::name, ": lost updates are counted for 16-bit parameters, got ", k.out.dtype());
  if (k.master.defined()) {
    check_dtype(K::name, "master", k.master, DType::f32);
    check_like_parameter(K::name, "master", k.master, k.out);
  }
  const auto check_counter = [](std::string_view argument, const OptionalOut& counter) {
    if (!counter.defined()) return;
    check_dtype(K::name, argument, counter, DType::i64);
    check(counter.numel() == 1, K::name, ": ", argument, " must have one element, got ", counter.shape());
  };
  check_counter("num_lost", k.num_lost);
  check_counter("num_non_finite", k.num_non_finite);
  if (k.guard.defined()) {
    check_dtype(K::name, "guard", k.guard, DType::f64);
    check(k.guard.numel() == 1, K::name, ": guard must have one element, got ", k.guard.shape());
  }
  check(k.rounding.first_element >= 0, K::name, ": first_element must not be negative, got ", k.rounding.first_element);
}

// Bytes of grad, parameter and master; what is updated is read and written.
template <class K>
double parameter_bytes(const K& k) {
  return k.grad.bytes() + (k.master.defined() ? 2 * k.master.bytes() + k.out.bytes() : 2 * k.out.bytes());
}

template <class Updates>
void validate_each(const Updates& k) {
  for (const auto& update : k.updates) {
    validate(update);
    check(update.out.device_kind() == k.out.device_kind(), Updates::name, ": parameters on ", name_of(k.out.device_kind()), " and on ",
          name_of(update.out.device_kind()));
  }
}

template <class Updates>
Cost cost_of_each(const Updates& k) {
  Cost sum;
  for (const auto& update : k.updates) sum += cost(update);
  return sum;
}

}  // namespace

void validate(const SgdUpdate& k) {
  check_parameter(k);
  if (k.momentum_buffer.defined()) check_like_parameter(k.name, "momentum_buffer", k.momentum_buffer, k.out);
  check(k.momentum_buffer.defined() || (k.momentum == 0 && !k.nesterov), k.name, ": momentum ", k.momentum, " needs a momentum_buffer");
}

Cost cost(const SgdUpdate& k) {
  return {(k.momentum_buffer.defined() ? 8.0 : 5.0) * double(k.out.numel()), parameter_bytes(k) + (k.momentum_buffer.defined() ? 2 * k.momentum_buffer.bytes() : 0)};
}

void validate(const AdamUpdate& k) {
  check_parameter(k);
  check_like_parameter(k.name, "mean", k.mean, k.out);
  check_like_parameter(k.name, "square", k.square, k.out);
  check(k.beta1 >= 0 && k.beta1 < 1 && k.beta2 >= 0 && k.beta2 < 1, k.name, ": betas must be in [0, 1), got ", k.beta1, " and ", k.beta2);
  check(k.eps >= 0, k.name, ": eps must not be negative, got ", k.eps);
  check(k.step >= 1, k.name, ": step must be at least 1, got ", k.step);
}

Cost cost(const AdamUpdate& k) { return {15.0 * double(k.out.numel()), parameter_bytes(k) + 2 * k.mean.bytes() + 2 * k.square.bytes()}; }

void validate(const SgdUpdates& k) { validate_each(k); }
Cost cost(const SgdUpdates& k) { return cost_of_each(k); }

void validate(const AdamUpdates& k) { validate_each(k); }
Cost cost(const AdamUpdates& k) { return cost_of_each(k); }

void validate(const ZeroInPlace& k) { check_contiguous(k.name, "out", k.out); }

Cost cost(const ZeroInPlace& k) { return {0, k.out.bytes()}; }

void validate(const ScaleInPlace& k) {
  check_floating(k.name, "out", k.out);
  check_contiguous(k.name, "out", k.out);
}

Cost cost(const ScaleInPlace& k) { return {double(k.out.numel()), 2 * k.out.bytes()}; }

}  // namespace refrain
