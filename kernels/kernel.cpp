#include <refrain/kernels/kernel.h>

namespace refrain {

TensorArg::TensorArg(const Tensor& t)
    : address_(t.address()), shape_(t.shape()), strides_(t.strides()), numel_(t.numel()), dtype_(t.dtype()), defined_(true),
      is_contiguous_(t.is_contiguous()) {
  if (t.storage() == nullptr || t.storage()->is_present()) return;
  fail("a tensor of shape ", t.shape(), " in module '", t.storage()->tag().module->text,
       "' is away: a parameter that is sharded or offloaded is here in its stage alone");
}

namespace {

void note_read(const Tensor& t) {
  if (t.autograd_slot()) t.autograd_slot()->on_read();
}

}  // namespace

In::In(const Tensor& t) : TensorArg(t) { note_read(t); }

OptionalIn::OptionalIn(const Tensor& t) {
  if (!t.defined()) return;
  static_cast<TensorArg&>(*this) = In(t);
}

Out::Out(const Tensor& t) : TensorArg(t), device_(&t.device().state()) {}

OptionalOut::OptionalOut(const Tensor& t) {
  if (t.defined()) static_cast<TensorArg&>(*this) = Out(t);
}

CostMeter& cost_meter() {
  thread_local CostMeter meter;
  return meter;
}

void detail::book(const Cost& cost) {
  CostMeter& meter = cost_meter();
  meter.total += cost;
  if (is_replaying()) meter.replay += cost;
  ++meter.launches;
}

void detail::fail_without_cuda_kernel(std::string_view kernel) { fail(kernel, ": there is no CUDA kernel for it"); }

void check_shape(std::string_view kernel, std::string_view argument, const TensorArg& arg, const Shape& expected) {
  check(arg.shape() == expected, kernel, ": ", argument, " must be ", expected, ", got ", arg.shape());
}

void check_dtype(std::string_view kernel, std::string_view argument, const TensorArg& arg, DType expected) {
  check(arg.dtype() == expected, kernel, ": ", argument, " must be ", expected, ", got ", arg.dtype());
}

void check_contiguous(std::string_view kernel, std::string_view argument, const TensorArg& arg) {
  check(arg.is_contiguous(), kernel, ": ", argument, " must be contiguous, got ", arg.shape(), " with strides ", arg.strides());
}

void check_floating(std::string_view kernel, std::string_view argument, const TensorArg& arg) {
  check(is_floating(arg.dtype()), kernel, ": ", argument, " must be of a floating dtype, got ", arg.dtype());
}

}  // namespace refrain
