// The fake CUDA runtime: memory, copies and fills.
#include <refrain/kernels/emulator/device_memory.h>
#include <refrain/kernels/emulator/options.h>
#include <refrain/kernels/emulator/queue.h>
#include <refrain/kernels/emulator/runtime.h>

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

using namespace refrain::emulator;

namespace {

// Host memory that copies are asynchronous from and to, and that kernels may reach.
struct Pinned {
  std::mutex mutex;
  std::map<const char*, std::size_t> ranges;

  bool has(const void* address, std::size_t bytes) {
    const std::lock_guard lock(mutex);
    const char* at = static_cast<const char*>(address);
    auto after = ranges.upper_bound(at);
    return after != ranges.begin() && at + bytes <= std::prev(after)->first + std::prev(after)->second;
  }
};
Pinned& pinned() {
  static Pinned* all = new Pinned;
  return *all;
}

enum class Side { device, pinned, pageable };
Side side_of(const void* address, std::size_t bytes) {
  return is_device_address(address) ? Side::device : pinned().has(address, bytes) ? Side::pinned : Side::pageable;
}

bool fits(cudaMemcpyKind kind, Side to, Side from) {
  switch (kind) {
    case cudaMemcpyHostToHost: return to != Side::device && from != Side::device;
    case cudaMemcpyHostToDevice: return to == Side::device && from != Side::device;
    case cudaMemcpyDeviceToHost: return to != Side::device && from == Side::device;
    case cudaMemcpyDeviceToDevice: return to == Side::device && from == Side::device;
    default: return true;
  }
}

constexpr char kCopy = 0, kFill = 0;  // what a graph's nodes are

cudaError_t give(cudaStream_t stream, std::function<void()> work, const void* what) {
  return guarded([&] { submit(stream, std::move(work), what); });
}

struct Rows {
  std::size_t to_pitch, from_pitch, width, height;
  std::size_t to_bytes() const { return height == 0 ? 0 : to_pitch * (height - 1) + width; }
  std::size_t from_bytes() const { return height == 0 ? 0 : from_pitch * (height - 1) + width; }
};

void copy_rows(void* to, const void* from, const Rows& rows) {
  for (std::size_t row = 0; row < rows.height; ++row)
    std::memmove(static_cast<char*>(to) + row * rows.to_pitch, static_cast<const char*>(from) + row * rows.from_pitch, rows.width);
}

cudaError_t copy(void* to, const void* from, const Rows& rows, cudaMemcpyKind kind, cudaStream_t stream, bool is_async) {
  if (!is_stream(stream)) return note_error(cudaErrorInvalidResourceHandle);
  if (rows.width == 0 || rows.height == 0) return cudaSuccess;
  const Side to_side = side_of(to, rows.to_bytes()), from_side = side_of(from, rows.from_bytes());
  if (!fits(kind, to_side, from_side)) return note_error(cudaErrorInvalidValue);
  if (to_side == Side::device && !is_device_memory(to, rows.to_bytes())) return note_error(cudaErrorInvalidValue);
  if (from_side == Side::device && !is_device_memory(from, rows.from_bytes())) return note_error(cudaErrorInvalidValue);
  const bool is_captured = stream != nullptr && is_capturing(stream);
  if (is_captured && (!is_async || from_side == Side::pageable || to_side == Side::pageable)) {
    spoil_capture(stream);
    return note_error(cudaErrorStreamCaptureUnsupported);
  }
  if (from_side == Side::pageable && is_async && options().is_deferred) {
    // Copied aside before the call returns, as a driver does.
    std::vector<char> aside(rows.width * rows.height);
    copy_rows(aside.data(), from, {rows.width, rows.from_pitch, rows.width, rows.height});
    return give(stream, [to, rows, bytes = std::move(aside)] { copy_rows(to, bytes.data(), {rows.to_pitch, rows.width, rows.width, rows.height}); },
                &kCopy);
  }
  const cudaError_t error = give(stream, [to, from, rows] { copy_rows(to, from, rows); }, &kCopy);
  // Into pageable memory the call returns when the bytes are there.
  const bool is_waited_for = !is_async || to_side == Side::pageable;
  return error == cudaSuccess && is_waited_for ? guarded([&] { drain(stream); }) : error;
}

cudaError_t fill(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  if (!is_stream(stream)) return note_error(cudaErrorInvalidResourceHandle);
  if (!is_device_memory(to, bytes) && !pinned().has(to, bytes)) return note_error(cudaErrorInvalidValue);
  return give(stream, [=] { std::memset(to, value, bytes); }, &kFill);
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** address, size_t bytes) {
  *address = bytes == 0 ? nullptr : allocate_memory(bytes);
  return note_error(bytes == 0 || *address != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* address) {
  if (address == nullptr) return cudaSuccess;
  const cudaError_t error = guarded([] { drain_all(); });
  return free_memory(address) ? error : note_error(cudaErrorInvalidValue);
}

cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
  *address = std::malloc(bytes);
  if (*address == nullptr) return note_error(cudaErrorMemoryAllocation);
  std::memset(*address, 0xff, bytes);
  const std::lock_guard lock(pinned().mutex);
  pinned().ranges[static_cast<const char*>(*address)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }
cudaError_t cudaFreeHost(void* address) {
  if (address == nullptr) return cudaSuccess;
  const cudaError_t error = guarded([] { drain_all(); });  // work that is queued may read it
  {
    const std::lock_guard lock(pinned().mutex);
    if (pinned().ranges.erase(static_cast<const char*>(address)) == 0) return note_error(cudaErrorInvalidValue);
  }
  std::free(address);
  return error;
}
cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return note_error(pinned().has(host, 1) ? cudaSuccess : cudaErrorInvalidValue);
}
cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
  const std::lock_guard lock(pinned().mutex);
  pinned().ranges[static_cast<const char*>(address)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* address) {
  const std::lock_guard lock(pinned().mutex);
  return note_error(pinned().ranges.erase(static_cast<const char*>(address)) > 0 ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return copy(to, from, {bytes, bytes, bytes, 1}, kind, nullptr, false);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return copy(to, from, {bytes, bytes, bytes, 1}, kind, stream, true);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  if (width > to_pitch || width > from_pitch) return note_error(cudaErrorInvalidValue);
  return copy(to, from, {to_pitch, from_pitch, width, height}, kind, stream, true);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) { return fill(to, value, bytes, nullptr); }
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) { return fill(to, value, bytes, stream); }

}
