#include <refrain/core/cuda/fault.cuh>

#include <new>

namespace refrain::cuda {

FaultReport::FaultReport() : memory_(sizeof(CudaFault)), device_(static_cast<CudaFault*>(memory_.device_data())) {
  new (memory_.data()) CudaFault{};
}

void FaultReport::check() const {
  // The device has written it behind the compiler's back.
  volatile CudaFault& fault = *reinterpret_cast<volatile CudaFault*>(memory_.data());
  const std::int32_t kind = fault.kind;
  if (kind == CudaFault::none) [[likely]] return;
  const std::int64_t position = fault.position, value = fault.value, limit = fault.limit;
  fault.kind = CudaFault::none;
  fault.is_claimed = 0;
  if (kind == CudaFault::embedding_index)
    fail("embedding: index ", value, " at position ", position, " must be below ", limit);
  fail("cross_entropy: target ", value, " at position ", position, " must be below ", limit);
}

}  // namespace refrain::cuda
