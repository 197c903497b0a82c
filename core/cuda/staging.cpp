#include <refrain/core/cuda/staging.cuh>

#include <algorithm>
#include <cstring>

namespace refrain::cuda {

namespace {

void copy(void* to, const void* from, std::int64_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  check_cuda(cudaMemcpyAsync(to, from, std::size_t(bytes), kind, stream), "copying to or from the device");
}

}  // namespace

Staging::Buffer& Staging::next() {
  std::unique_ptr<Buffer>& buffer = buffers_[std::size_t(num_used_++ % kNum)];
  if (!buffer) buffer = std::make_unique<Buffer>();
  buffer->is_free.synchronize();
  return *buffer;
}

void Staging::write(std::byte* to, const std::byte* host, std::int64_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  for (std::int64_t at = 0; at < bytes; at += kBytes) {
    const std::int64_t count = std::min(kBytes, bytes - at);
    Buffer& buffer = next();
    std::memcpy(buffer.memory.data(), host + at, std::size_t(count));
    copy(to + at, buffer.memory.data(), count, cudaMemcpyHostToDevice, stream);
    buffer.is_free.record(stream);
  }
}

void Staging::read(std::byte* host, const std::byte* from, std::int64_t bytes, cudaStream_t stream) {
  const std::lock_guard lock(mutex_);
  const std::int64_t first = num_used_, num = (bytes + kBytes - 1) / kBytes;
  // The device fills buffers ahead of the host, which empties them.
  for (std::int64_t given = 0, done = 0; done < num; ++done) {
    for (; given < num && given < done + kNum; ++given) {
      const std::int64_t at = given * kBytes;
      Buffer& buffer = next();
      copy(buffer.memory.data(), from + at, std::min(kBytes, bytes - at), cudaMemcpyDeviceToHost, stream);
      buffer.is_free.record(stream);
    }
    const Buffer& filled = buffer(first + done);
    filled.is_free.synchronize();
    const std::int64_t at = done * kBytes;
    std::memcpy(host + at, filled.memory.data(), std::size_t(std::min(kBytes, bytes - at)));
  }
}

}  // namespace refrain::cuda
