// The fake CUDA runtime: streams and events.
#include <refrain/kernels/emulator/queue.h>
#include <refrain/kernels/emulator/runtime.h>

#include <cuda_runtime_api.h>

using namespace refrain::emulator;

namespace {

// `if_captured`: the error that this is on a stream that captures.
cudaError_t if_stream(cudaStream_t stream, const std::function<void()>& f, cudaError_t if_captured) {
  if (!is_stream(stream)) return note_error(cudaErrorInvalidResourceHandle);
  if (stream != nullptr && is_capturing(stream)) {
    spoil_capture(stream);
    return note_error(if_captured);
  }
  return guarded(f);
}
cudaError_t if_event(cudaEvent_t event, const std::function<void()>& f) {
  return is_event(event) ? guarded(f) : note_error(cudaErrorInvalidResourceHandle);
}

}  // namespace

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = create_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  *stream = create_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  *stream = create_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return stream == nullptr ? note_error(cudaErrorInvalidResourceHandle) : if_stream(stream, [&] { destroy_stream(stream); }, cudaErrorStreamCaptureUnsupported);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return if_stream(stream, [&] { drain(stream); }, cudaErrorStreamCaptureUnsupported);
}
// Each look runs one piece of work, so that who polls gets there.
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  bool is_done = true;
  const cudaError_t error = if_stream(stream, [&] { is_done = poll(stream); }, cudaErrorStreamCaptureUnsupported);
  return error == cudaSuccess && !is_done ? cudaErrorNotReady : error;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (!is_event(event)) return note_error(cudaErrorInvalidResourceHandle);
  return if_stream(stream, [&] { wait_event(stream, event); }, cudaErrorStreamCaptureIsolation);
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = create_event();
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = create_event();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { return note_error(destroy_event(event) ? cudaSuccess : cudaErrorInvalidResourceHandle); }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!is_event(event)) return note_error(cudaErrorInvalidResourceHandle);
  // CUDA would make it an event of the graph, which nothing outside may wait for: the backend means none such.
  return if_stream(stream, [&] { record_event(event, stream); }, cudaErrorStreamCaptureUnsupported);
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return if_event(event, [&] { drain_to(event); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  bool is_done = true;
  const cudaError_t error = if_event(event, [&] { is_done = poll(event); });
  return error == cudaSuccess && !is_done ? cudaErrorNotReady : error;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t second) {
  if (!is_event(first) || !is_event(second)) return note_error(cudaErrorInvalidResourceHandle);
  *milliseconds = float(milliseconds_between(first, second));
  return cudaSuccess;
}

}
