// Text for SVG and HTML.
#pragma once

#include <string>
#include <string_view>

namespace refrain {

// With &, <, > and both quotes as references, so that it stays text between tags and in attributes.
std::string escaped(std::string_view text);

// With a point and `digits` places behind it, whatever the process's locale: for coordinates and CSS.
std::string fixed(double value, int digits);

}  // namespace refrain
