// Seconds of a clock that never goes back; only differences mean something.
#pragma once

#include <chrono>

namespace refrain {

inline double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace refrain
