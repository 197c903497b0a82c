// Uploads beside the kernels: one stream of copies a device, ordered with the stream of kernels by events alone.
#include <refrain/core/cuda/backend.h>
#include <refrain/core/cuda/cuda_range.cuh>

#include <algorithm>

namespace refrain::detail {

namespace {

class CudaUpload : public Upload {
 public:
  CudaUpload(const Device& device, std::int64_t bytes)
      : device_(device), range_(static_cast<const cuda::CudaRange&>(*device.state().range)) {
    cuda::make_current(device.index());
    objects_ = std::make_unique<Objects>(bytes);
  }
  ~CudaUpload() override {
    static_cast<void>(cudaSetDevice(device_.index()));
    static_cast<void>(cudaStreamSynchronize(range_.uploads()));
  }

  std::byte* host() override {
    cuda::make_current(device_.index());
    objects_->is_copied.synchronize();
    return objects_->memory.data();
  }
  void start(std::byte* to, std::int64_t bytes) override {
    if (bytes == 0) return;
    cuda::make_current(device_.index());
    objects_->is_released.before(range_.uploads());
    cuda::check_cuda(cudaMemcpyAsync(to, objects_->memory.data(), std::size_t(bytes), cudaMemcpyHostToDevice, range_.uploads()),
                     "uploading to the device");
    objects_->is_copied.record(range_.uploads());
  }
  void finish() override {
    cuda::make_current(device_.index());
    objects_->is_copied.before(range_.compute());
  }
  void release() override {
    cuda::make_current(device_.index());
    objects_->is_released.record(range_.compute());
  }

 private:
  struct Objects {
    explicit Objects(std::int64_t bytes) : memory(std::max<std::int64_t>(bytes, 1)) {}
    cuda::PinnedMemory memory;
    cuda::Event is_copied, is_released;
  };
  Device device_;  // keeps the range
  const cuda::CudaRange& range_;
  std::unique_ptr<Objects> objects_;
};

}  // namespace

std::unique_ptr<Upload> new_upload(const Device& cuda, std::int64_t bytes) {
  invariant(cuda.kind() == DeviceKind::cuda, "an upload to a device that is no CUDA device");
  return std::make_unique<CudaUpload>(cuda, bytes);
}

}  // namespace refrain::detail
