# zlib: checksums of manifests. nlohmann-json: the header of safetensors files. Neither shows in a public header.
find_package(ZLIB REQUIRED)
find_package(nlohmann_json REQUIRED)
target_link_libraries(refrain_core PRIVATE ZLIB::ZLIB nlohmann_json::nlohmann_json)
