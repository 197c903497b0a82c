// What the backend's host files include first: the CUDA runtime's and the driver's interface, or the emulator's. The driver's
// functions are never linked: driver.cuh looks them up.
#pragma once

#if !defined(REFRAIN_EMULATED)
#include <cuda.h>
#endif
#include <refrain/core/cuda/platform.cuh>
