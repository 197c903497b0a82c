// What the backend's host files include first: the CUDA runtime's interface, and the driver's, whose functions are never linked:
// driver.cuh looks them up.
#pragma once

#include <cuda.h>
#include <refrain/core/cuda/platform.cuh>
