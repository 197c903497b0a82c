# The CUDA tests on what nvcc made: test_cuda_ptx links nvcc's own objects of refrain_device with the emulator's CUDA runtime, and
# executes the PTX that is embedded in them (kernels/emulator/ptx). Needs nvcc; nothing is compiled by it a second time.
# Included by tests/cuda.
#
#   ptx_opcodes FILE…    lists the instructions in PTX files or objects, and names those the interpreter does not know
#   cubin_report FILE…   lists registers, memory and instructions of the machine code in objects; see tests/cuda/gates
#   test_ptx             the interpreter's own tests
set(ptx ${CMAKE_SOURCE_DIR}/kernels/emulator/ptx)
file(GLOB ptx_sources CONFIGURE_DEPENDS ${ptx}/*.cpp)
list(FILTER ptx_sources EXCLUDE REGEX "/(opcodes|cubin_report|runtime)\\.cpp$")

add_library(refrain_ptx OBJECT EXCLUDE_FROM_ALL ${ptx_sources})
target_link_libraries(refrain_ptx PRIVATE refrain_emulator_flags)
target_compile_options(refrain_ptx PRIVATE -O3)
add_library(refrain_ptx_runtime OBJECT EXCLUDE_FROM_ALL ${ptx}/runtime.cpp)
target_link_libraries(refrain_ptx_runtime PRIVATE refrain_emulator_flags)

find_package(Threads REQUIRED)
foreach(tool opcodes cubin_report)
  if(tool STREQUAL "opcodes")
    set(name ptx_opcodes)
  else()
    set(name ${tool})
  endif()
  add_executable(${name} EXCLUDE_FROM_ALL ${ptx}/${tool}.cpp $<TARGET_OBJECTS:refrain_ptx>)
  target_link_libraries(${name} PRIVATE refrain_emulator_flags Threads::Threads)
endforeach()

file(GLOB ptx_tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/tests/cuda/ptx/*.cpp)
add_executable(test_ptx ${ptx_tests} $<TARGET_OBJECTS:refrain_ptx>)
target_link_libraries(test_ptx PRIVATE refrain_test_support refrain_core)
target_compile_options(test_ptx PRIVATE -O1)
add_test(NAME ptx COMMAND test_ptx)

if(REFRAIN_HAS_CUDA)
  # The emulator's objects come first, so of NVIDIA's libraries nothing is linked.
  add_executable(test_cuda_ptx EXCLUDE_FROM_ALL ${REFRAIN_DEVICE_TESTS} $<TARGET_OBJECTS:refrain_emulator>
    $<TARGET_OBJECTS:refrain_emulator_no_races> $<TARGET_OBJECTS:refrain_ptx> $<TARGET_OBJECTS:refrain_ptx_runtime>)
  set_target_properties(test_cuda_ptx PROPERTIES LINKER_LANGUAGE CXX)
  target_link_libraries(test_cuda_ptx PRIVATE refrain_test_support refrain_train ${CMAKE_DL_LIBS})
  target_link_options(test_cuda_ptx PRIVATE -Wl,--as-needed)
endif()
