// What the fake CUDA runtime's functions have in common: an emulated failure becomes an error code whose text says what it was.
#pragma once

#include <refrain/kernels/emulator/thread.h>

#include <driver_types.h>

#include <functional>

namespace refrain::emulator {

// Runs f; an Error it throws becomes cudaErrorLaunchFailure.
cudaError_t guarded(const std::function<void()>& f);
// Remembered for cudaGetLastError unless it is success; returns it.
cudaError_t note_error(cudaError_t error);

}  // namespace refrain::emulator
