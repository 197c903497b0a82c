// Streams, events and pinned memory as objects. They belong to the device that is current where they are made. Destructors ask
// nothing of a device that has failed: its errors were told to whoever waited for it.
#pragma once

#include <refrain/core/cuda/runtime.cuh>

#include <atomic>
#include <cstddef>

namespace refrain::cuda {

inline void make_current(int index) { check_cuda(cudaSetDevice(index), "choosing the CUDA device"); }

class Stream {
 public:
  Stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  ~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }
  void synchronize() const { check_cuda(cudaStreamSynchronize(stream_), "waiting for the device"); }

 private:
  cudaStream_t stream_ = nullptr;
};

// A point in a stream's work. One that was never recorded is reached.
class Event {
 public:
  Event() { check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "making an event"); }
  ~Event() { static_cast<void>(cudaEventDestroy(event_)); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(cudaStream_t stream) const { check_cuda(cudaEventRecord(event_, stream), "marking a point in a stream"); }
  void synchronize() const { check_cuda(cudaEventSynchronize(event_), "waiting for the device"); }
  bool is_reached() const {
    const cudaError_t error = cudaEventQuery(event_);
    if (error != cudaErrorNotReady) check_cuda(error, "waiting for the device");
    return error == cudaSuccess;
  }
  // What is given to `stream` from now on comes after this point.
  void before(cudaStream_t stream) const { check_cuda(cudaStreamWaitEvent(stream, event_, 0), "ordering two streams"); }

 private:
  cudaEvent_t event_ = nullptr;
};

// Host memory that device copies are asynchronous and fast from, and that kernels may reach.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::int64_t bytes) : bytes_(bytes) {
    check_cuda(cudaHostAlloc(&data_, std::size_t(bytes), cudaHostAllocMapped | cudaHostAllocPortable), "pinning host memory");
    total() += bytes_;
  }
  ~PinnedMemory() {
    static_cast<void>(cudaFreeHost(data_));
    total() -= bytes_;
  }
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  void* device_data() const {
    void* address = nullptr;
    check_cuda(cudaHostGetDevicePointer(&address, data_, 0), "mapping host memory");
    return address;
  }
  // Of the process.
  static std::atomic<std::int64_t>& total() {
    static std::atomic<std::int64_t> bytes{0};
    return bytes;
  }

 private:
  std::int64_t bytes_;
  void* data_ = nullptr;
};

}  // namespace refrain::cuda
