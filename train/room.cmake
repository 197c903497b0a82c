# toml++ reads configurations; it shows in no public header.
find_package(tomlplusplus REQUIRED)
target_link_libraries(refrain_train PRIVATE tomlplusplus::tomlplusplus)
