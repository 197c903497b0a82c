# refrain_room(NAME DEPENDS…): the static library refrain_NAME from every .cpp below NAME/, seen by others as
# <refrain/NAME/…>. What a room needs beyond other rooms is in NAME/room.cmake when there is one.

find_package(Threads REQUIRED)

find_program(REFRAIN_CCACHE ccache)
if(REFRAIN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${REFRAIN_CCACHE})
endif()

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

# Flags every target of this project is compiled with.
add_library(refrain_flags INTERFACE)
target_compile_features(refrain_flags INTERFACE cxx_std_20)
# a*b+c is fused only where the source says so: vector body, tail, replay and rebuild then give the same bits
set(cxx_flags -Wall -Wextra -Wshadow -Werror -ffp-contract=off)
if(REFRAIN_ARCH)
  list(APPEND cxx_flags -march=${REFRAIN_ARCH})
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 warns of uninitialised vector registers inside its own intrinsics headers
  list(APPEND cxx_flags -Wno-maybe-uninitialized -Wno-psabi)
endif()
# nvcc has flags of its own: cmake/RefrainCuda.cmake
target_compile_options(refrain_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${cxx_flags}>")
if(REFRAIN_SANITIZE)
  target_compile_options(refrain_flags INTERFACE -fsanitize=${REFRAIN_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(refrain_flags INTERFACE -fsanitize=${REFRAIN_SANITIZE})
endif()

set(REFRAIN_INCLUDE ${CMAKE_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${REFRAIN_INCLUDE}/refrain)

function(refrain_room name)
  file(CREATE_LINK ${CMAKE_SOURCE_DIR}/${name} ${REFRAIN_INCLUDE}/refrain/${name} SYMBOLIC)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${name}/*.cpp)
  # The CUDA backend and the emulator are targets of their own: cmake/RefrainCuda.cmake, cmake/RefrainEmulator.cmake.
  list(FILTER sources EXCLUDE REGEX "/cuda/|/emulator/|/cuda_stub\\.cpp$")
  if(sources)
    add_library(refrain_${name} STATIC ${sources})
    set(scope PUBLIC)
  else()
    add_library(refrain_${name} INTERFACE)
    set(scope INTERFACE)
  endif()
  target_include_directories(refrain_${name} ${scope} $<BUILD_INTERFACE:${REFRAIN_INCLUDE}> $<INSTALL_INTERFACE:include>)
  target_compile_features(refrain_${name} ${scope} cxx_std_20)
  # The flags are this build's own affair: who embeds the library chooses theirs.
  target_link_libraries(refrain_${name} ${scope} $<BUILD_INTERFACE:refrain_flags> Threads::Threads)
  set_target_properties(refrain_${name} PROPERTIES EXPORT_NAME ${name})
  install(TARGETS refrain_${name} EXPORT refrain)
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/${name}/ DESTINATION include/refrain/${name} FILES_MATCHING PATTERN "*.h"
    PATTERN "emulator" EXCLUDE)
  foreach(dependency ${ARGN})
    target_link_libraries(refrain_${name} ${scope} refrain_${dependency})
  endforeach()
  if(EXISTS ${CMAKE_SOURCE_DIR}/${name}/room.cmake)
    include(${CMAKE_SOURCE_DIR}/${name}/room.cmake)
  endif()
endfunction()

# Called once after the last room: what find_package(refrain) reads.
function(refrain_install_package)
  include(CMakePackageConfigHelpers)
  set(destination lib/cmake/refrain)
  install(EXPORT refrain NAMESPACE refrain:: DESTINATION ${destination} FILE refrain-targets.cmake)
  write_basic_package_version_file(${CMAKE_BINARY_DIR}/refrain-config-version.cmake COMPATIBILITY SameMinorVersion)
  configure_file(${CMAKE_SOURCE_DIR}/cmake/refrain-config.cmake.in ${CMAKE_BINARY_DIR}/refrain-config.cmake @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/refrain-config.cmake ${CMAKE_BINARY_DIR}/refrain-config-version.cmake DESTINATION ${destination})
endfunction()
