// The page's files as they were when the library was built; page.cpp.in is filled in by page.cmake.
#pragma once

#include <array>
#include <string_view>

namespace refrain::page {

inline constexpr int kNumScripts = 10;

extern const std::string_view kPage, kStyle;
extern const std::array<std::string_view, kNumScripts> kScripts;  // in the order they run

}  // namespace refrain::page
