# Highway 1.0.3: its list of dynamic targets contradicts itself on machines with the newest AVX-512 (an #error); the
# kernels want the build's own target anyway.
target_compile_definitions(refrain_kernels PRIVATE HWY_COMPILE_ONLY_STATIC
  # without it -march=x86-64-v3 or haswell (AVX2, but no AES) would quietly get 128-bit vectors
  HWY_DISABLE_PCLMUL_AES)
if(NOT REFRAIN_ARCH STREQUAL "native")
  # -march=x86-64-v3 or haswell do not promise AES instructions, without which Highway falls back from AVX2 to SSSE3.
  # The kernels use none. Public, so that tests see the same vectors.
  target_compile_definitions(refrain_kernels PUBLIC HWY_DISABLE_PCLMUL_AES)
endif()

# GEMM: the builtin kernel and Eigen are always there; oneDNN takes most f32 products where it is installed.
find_package(Eigen3 3.3 REQUIRED NO_MODULE)
target_include_directories(refrain_kernels SYSTEM PRIVATE $<TARGET_PROPERTY:Eigen3::Eigen,INTERFACE_INCLUDE_DIRECTORIES>)

if(REFRAIN_ONEDNN)
  # Not through oneDNN's package file: Debian's asks for OpenCL's development files as well.
  find_path(REFRAIN_DNNL_INCLUDE oneapi/dnnl/dnnl.h)
  find_library(REFRAIN_DNNL_LIBRARY dnnl)
  mark_as_advanced(REFRAIN_DNNL_INCLUDE REFRAIN_DNNL_LIBRARY)
  if(REFRAIN_DNNL_INCLUDE AND REFRAIN_DNNL_LIBRARY)
    target_include_directories(refrain_kernels SYSTEM PRIVATE ${REFRAIN_DNNL_INCLUDE})
    target_link_libraries(refrain_kernels PRIVATE ${REFRAIN_DNNL_LIBRARY} ${CMAKE_DL_LIBS})
    target_compile_definitions(refrain_kernels PRIVATE REFRAIN_HAS_ONEDNN)
    message(STATUS "GEMM: oneDNN (${REFRAIN_DNNL_LIBRARY}) for most f32 products")
  else()
    message(STATUS "GEMM: builtin (with oneDNN, Debian's libdnnl-dev, some f32 products are faster)")
  endif()
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 finds its own AVX-512 intrinsics uninitialised.
  set_source_files_properties(${CMAKE_SOURCE_DIR}/kernels/matmul/gemm_eigen.cpp ${CMAKE_SOURCE_DIR}/kernels/matmul/gemm_amx.cpp
    PROPERTIES COMPILE_OPTIONS -Wno-uninitialized)
endif()
