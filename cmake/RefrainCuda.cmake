# The CUDA backend: built by nvcc where it is found, a stub otherwise. refrain_device is whichever it is; core and kernels
# bring it along, so nobody links it by hand.
set(REFRAIN_CUDA "AUTO" CACHE STRING "CUDA backend: ON, OFF, or AUTO where nvcc is found")
set(REFRAIN_CUDA_ARCHITECTURES "80;90" CACHE STRING "Compute capabilities the kernels are compiled for")
set_property(CACHE REFRAIN_CUDA PROPERTY STRINGS AUTO ON OFF)
option(REFRAIN_CUDNN "Convolutions of the CUDA backend may be cuDNN's, where its headers are" ON)

set(REFRAIN_HAS_CUDA OFF)
if(NOT REFRAIN_CUDA STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(REFRAIN_HAS_CUDA ON)
  elseif(REFRAIN_CUDA STREQUAL "ON")
    message(FATAL_ERROR "REFRAIN_CUDA=ON, but there is no nvcc: put it on PATH or set CMAKE_CUDA_COMPILER")
  endif()
endif()

file(GLOB_RECURSE REFRAIN_CU_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/core/*.cu ${CMAKE_SOURCE_DIR}/kernels/*.cu)
# The backend's host side: plain C++ on the CUDA runtime's interface, which the emulator has too.
file(GLOB REFRAIN_CUDA_HOST_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/core/cuda/*.cpp ${CMAKE_SOURCE_DIR}/kernels/*/cuda/*.cpp
  ${CMAKE_SOURCE_DIR}/dist/nccl/cuda/*.cpp)
list(FILTER REFRAIN_CUDA_HOST_SOURCES EXCLUDE REGEX "/stub\\.cpp$")

# NVIDIA's libraries are not linked: a program opens them when it first uses them (kernels/common/cuda/library.h). Of cuDNN the
# headers may be missing, too; before version 9 its functions answer in other ways.
if(REFRAIN_HAS_CUDA)
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
else()
  find_package(CUDAToolkit QUIET)  # the emulator needs its headers
endif()
find_path(REFRAIN_CUDNN_INCLUDE_DIR cudnn_version.h HINTS ${CUDAToolkit_INCLUDE_DIRS} ENV CUDNN_PATH ENV CUDNN_HOME PATH_SUFFIXES include)
set(REFRAIN_CUDNN_VERSION 0)
if(REFRAIN_CUDNN AND REFRAIN_CUDNN_INCLUDE_DIR)
  file(STRINGS ${REFRAIN_CUDNN_INCLUDE_DIR}/cudnn_version.h version REGEX "^#define CUDNN_MAJOR [0-9]+")
  string(REGEX REPLACE ".* " "" REFRAIN_CUDNN_VERSION "${version}")
endif()
# Gives a target cuDNN's headers, where they are, and takes what is for the other case from a list of sources.
function(refrain_cudnn target scope sources)
  set(list ${${sources}})
  if(REFRAIN_CUDNN_VERSION GREATER_EQUAL 9)
    target_compile_definitions(${target} ${scope} REFRAIN_CUDNN)
    target_include_directories(${target} SYSTEM ${scope} ${REFRAIN_CUDNN_INCLUDE_DIR})
    list(FILTER list EXCLUDE REGEX "/no_cudnn\\.cpp$")
  else()
    list(FILTER list EXCLUDE REGEX "/cudnn[a-z_]*\\.cpp$")
  endif()
  set(${sources} ${list} PARENT_SCOPE)
endfunction()

if(REFRAIN_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${REFRAIN_CCACHE})
endif()

# How nvcc compiles a target's .cu files.
function(refrain_cuda_options target)
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${REFRAIN_CUDA_ARCHITECTURES}")
  # CMake 3.25 ignores CUDA_STANDARD 20. Products are fused with sums only where the source says so, as on the CPU. nvcc hands
  # pointers to members on to the host's compiler with parentheses of its own.
  set(options -std=c++20 -fmad=false -Xcompiler=-Wall,-Wextra,-Wno-parentheses)
  if(REFRAIN_TESTS)
    list(APPEND options --no-compress)  # tests execute the embedded PTX (cmake/RefrainPtx.cmake)
  endif()
  target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${options}>")
endfunction()

if(REFRAIN_HAS_CUDA)
  add_library(refrain_device STATIC ${REFRAIN_CU_SOURCES})
  refrain_cudnn(refrain_device PRIVATE REFRAIN_CUDA_HOST_SOURCES)
  target_sources(refrain_device PRIVATE ${REFRAIN_CUDA_HOST_SOURCES})
  refrain_cuda_options(refrain_device)
  target_link_libraries(refrain_device PUBLIC CUDA::cudart_static ${CMAKE_DL_LIBS})
  # Programs of the build find this toolkit's libraries wherever it is; installed ones look where the system does.
  list(APPEND CMAKE_BUILD_RPATH ${CUDAToolkit_LIBRARY_DIR})
  list(JOIN REFRAIN_CUDA_ARCHITECTURES ", " architectures)
  set(cudnn "no cuDNN")
  if(REFRAIN_CUDNN_VERSION GREATER_EQUAL 9)
    set(cudnn "cuDNN ${REFRAIN_CUDNN_VERSION}")
  endif()
  message(STATUS "CUDA: nvcc ${CMAKE_CUDA_COMPILER_VERSION}, compute capabilities ${architectures}, ${cudnn}")
else()
  add_library(refrain_device STATIC ${CMAKE_SOURCE_DIR}/core/cuda/stub.cpp ${CMAKE_SOURCE_DIR}/kernels/common/cuda_stub.cpp
    ${CMAKE_SOURCE_DIR}/kernels/common/cuda/stub.cpp ${CMAKE_SOURCE_DIR}/dist/nccl/cuda/stub.cpp)
  message(STATUS "CUDA: no backend")
endif()
target_include_directories(refrain_device PUBLIC $<BUILD_INTERFACE:${REFRAIN_INCLUDE}> $<INSTALL_INTERFACE:include>)
target_compile_features(refrain_device PUBLIC cxx_std_20)
target_link_libraries(refrain_device PUBLIC refrain_kernels refrain_core)
target_compile_options(refrain_device PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wshadow;-Werror;-ffp-contract=off>")
set_target_properties(refrain_device PROPERTIES EXPORT_NAME device)
install(TARGETS refrain_device EXPORT refrain)
# Static libraries that need each other: kernels are launched from templates in the rooms above.
target_link_libraries(refrain_core PUBLIC refrain_device)
