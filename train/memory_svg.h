// A picture of memory over one step, stacked by kind: an SVG for documents and papers.
#pragma once

#include <refrain/train/memory_curve.h>

#include <string>

namespace refrain {

// The last whole step of the timeline (its marks say "step N"), or all of it when there is none. `title` is set above it.
std::string memory_svg(const Timeline& timeline, const std::string& title);

}  // namespace refrain
