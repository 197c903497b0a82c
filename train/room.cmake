# toml++ reads configurations, nlohmann-json writes summaries; neither shows in a public header.
find_package(tomlplusplus REQUIRED)
target_link_libraries(refrain_train PRIVATE tomlplusplus::tomlplusplus nlohmann_json::nlohmann_json)
target_compile_definitions(refrain_train PRIVATE REFRAIN_VERSION="${PROJECT_VERSION}")
include(${CMAKE_CURRENT_LIST_DIR}/report_html/page.cmake)
