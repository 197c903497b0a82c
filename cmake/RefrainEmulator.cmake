# The CUDA backend on the host, for tests without a GPU: the same .cu files compiled as C++ on the emulator in kernels/emulator,
# beside the backend's own host sources on a fake CUDA runtime. Independent of nvcc; needs CUDA's headers. Programs link its
# objects (REFRAIN_EMULATED_plain, _asan, _race), which come before refrain_device's members: those are then not linked.
set(REFRAIN_CUDA_ONLY "" CACHE STRING "Only these folders' kernels are emulated, such as norm;softmax; the others throw. Empty: all")

find_package(CUDAToolkit QUIET)
set(REFRAIN_HAS_EMULATOR OFF)
if(REFRAIN_TESTS AND CUDAToolkit_FOUND AND NOT REFRAIN_SANITIZE)
  set(REFRAIN_HAS_EMULATOR ON)
  # A directory of its own: whether a .cu file is C++ is a property of the directory that compiles it.
  add_subdirectory(kernels/emulator)
else()
  message(STATUS "CUDA emulator: not built (tests off, a sanitizer on, or no CUDA headers)")
endif()
