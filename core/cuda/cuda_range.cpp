#include <refrain/core/cuda/copy.h>
#include <refrain/core/cuda/cuda_range.cuh>
#include <refrain/core/cuda/discovery.h>
#include <refrain/core/cuda/driver.cuh>

namespace refrain {

namespace cuda {

CudaRange::Context::Context(int device) : index(device) {
  const std::string problem = problem_of(index);
  check<DeviceUnavailable>(problem.empty(), "no CUDA device ", index, ": ", problem);
  driver();
  make_current(index);
  check_cuda(cudaFree(nullptr), "starting the CUDA device");  // makes the context, before anything is measured
}

CudaRange::CudaRange(int index) : context_(index), memory_(index) {}

CudaRange::~CudaRange() {
  static_cast<void>(cudaSetDevice(context_.index));
  // Whoever had wanted to know of an error would have waited.
  static_cast<void>(cudaStreamSynchronize(uploads_.get()));
  static_cast<void>(cudaStreamSynchronize(compute_.get()));
}

bool CudaRange::commit(std::int64_t end) {
  make_current(context_.index);
  return memory_.commit(end);
}

void CudaRange::read(std::byte* host, const std::byte* from, std::int64_t bytes) const {
  if (bytes == 0) return;
  make_current(context_.index);
  staging_.read(host, from, bytes, compute());
  fault_.check();
}

void CudaRange::write(std::byte* to, const std::byte* host, std::int64_t bytes) const {
  if (bytes == 0) return;
  make_current(context_.index);
  staging_.write(to, host, bytes, compute());
}

void CudaRange::copy(const Shape& shape, int size, std::byte* to, const Strides& to_strides, const std::byte* from,
                     const Strides& from_strides) const {
  copy_strided(cuda(), shape, size, to, to_strides, from, from_strides);
}

void CudaRange::fill(const Shape& shape, int size, std::byte* to, const Strides& strides, std::uint64_t pattern) const {
  fill_strided(cuda(), shape, size, to, strides, pattern);
}

void CudaRange::synchronize() const {
  make_current(context_.index);
  graphs_.close();
  compute_.synchronize();
  fault_.check();
}

Cuda CudaRange::cuda() const {
  make_current(context_.index);
  graphs_.open();
  return {.stream = compute_.get(), .fault = fault_.on_device(), .index = context_.index};
}

}  // namespace cuda

std::unique_ptr<detail::AddressRange> detail::reserve_cuda_range(int index) { return std::make_unique<cuda::CudaRange>(index); }

}  // namespace refrain
