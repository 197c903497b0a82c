// A picture of memory over one step, stacked by kind: an SVG for documents and papers.
#pragma once

#include <refrain/train/memory_curve.h>

#include <string>

namespace refrain {

// From the last mark "step N" of the timeline to the next mark or its end, or all of it when there is none such. `title` is set
// above it.
std::string memory_svg(const Timeline& timeline, const std::string& title);

}  // namespace refrain
