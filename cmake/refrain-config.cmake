# find_package(refrain) gives refrain::core, kernels, autograd, nn, optim, data, models and train; each brings the rooms it
# stands on. What they link privately is found here.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
find_dependency(ZLIB)
find_dependency(nlohmann_json)
find_dependency(tomlplusplus)
include(${CMAKE_CURRENT_LIST_DIR}/refrain-targets.cmake)
