#include <refrain/tests/cuda/parity.h>

namespace refrain {

Device cuda_device() {
  // Memory that nobody holds lies behind every tensor: AddressSanitizer then sees what is written there.
  static const bool has_room = empty({16 << 20}, DType::u8, Device::cuda(0)).defined();
  static_cast<void>(has_room);
  return Device::cuda(0);
}

Tensor on_cuda(const Tensor& t) { return t.defined() ? to_device(t, cuda_device()) : Tensor(); }

Tensor on_cpu(const Tensor& t) { return t.defined() ? to_device(t, Device::cpu()) : Tensor(); }

Tensor poisoned(const Shape& shape, DType dtype, const Device& device) {
  Tensor t = empty(shape, dtype, device);
  if (t.numel() > 0) device.state().range->fill({t.bytes()}, 1, t.address(), {1}, 0xff);
  return t;
}

}  // namespace refrain
