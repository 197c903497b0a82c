// The fake CUDA runtime: errors.
#include <refrain/kernels/emulator/runtime.h>

#include <cuda_runtime_api.h>

#include <cstdio>
#include <map>
#include <mutex>

namespace refrain::emulator {

namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local std::string last_failure;

struct Text {
  const char *name, *description;
};
Text text_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return {"cudaSuccess", "no error"};
    case cudaErrorInvalidValue: return {"cudaErrorInvalidValue", "invalid argument"};
    case cudaErrorMemoryAllocation: return {"cudaErrorMemoryAllocation", "out of memory"};
    case cudaErrorInvalidConfiguration: return {"cudaErrorInvalidConfiguration", "invalid configuration argument"};
    case cudaErrorInvalidDevice: return {"cudaErrorInvalidDevice", "invalid device ordinal"};
    case cudaErrorInvalidResourceHandle: return {"cudaErrorInvalidResourceHandle", "invalid resource handle"};
    case cudaErrorInvalidDeviceFunction: return {"cudaErrorInvalidDeviceFunction", "invalid device function"};
    case cudaErrorNotReady: return {"cudaErrorNotReady", "device not ready"};
    case cudaErrorNoDevice: return {"cudaErrorNoDevice", "no CUDA-capable device is detected"};
    case cudaErrorInsufficientDriver: return {"cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"};
    case cudaErrorLaunchFailure: return {"cudaErrorLaunchFailure", "unspecified launch failure"};
    case cudaErrorStreamCaptureUnsupported:
      return {"cudaErrorStreamCaptureUnsupported", "operation not permitted when stream is capturing"};
    case cudaErrorStreamCaptureInvalidated:
      return {"cudaErrorStreamCaptureInvalidated", "operation failed due to a previous error during capture"};
    case cudaErrorStreamCaptureIsolation:
      return {"cudaErrorStreamCaptureIsolation", "dependency created on uncaptured work in another stream"};
    case cudaErrorIllegalState:
      return {"cudaErrorIllegalState", "the operation cannot be performed in the present state"};
    case cudaErrorGraphExecUpdateFailure:
      return {"cudaErrorGraphExecUpdateFailure", "the graph update was not performed because it included changes which violated constraints "
                                                 "specific to instantiated graph update"};
    case cudaErrorNotSupported: return {"cudaErrorNotSupported", "operation not supported"};
    default: return {"cudaErrorUnknown", "unknown error"};
  }
}

}  // namespace

cudaError_t note_error(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

cudaError_t guarded(const std::function<void()>& f) {
  try {
    f();
    return cudaSuccess;
  } catch (const Error& error) {
    last_failure = error.what();
    std::fprintf(stderr, "emulator: %s\n", error.what());
    return note_error(cudaErrorLaunchFailure);
  }
}

}  // namespace refrain::emulator

using namespace refrain::emulator;

extern "C" {

const char* cudaGetErrorName(cudaError_t error) { return text_of(error).name; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure && !last_failure.empty() ? last_failure.c_str() : text_of(error).description;
}
cudaError_t cudaPeekAtLastError() { return last_error; }
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}

}
