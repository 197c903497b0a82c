// What tests of how ranks meet share.
#pragma once

#include <refrain/dist/rank_lost.h>

#include <cstdlib>
#include <functional>
#include <string>

namespace refrain::testing {

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::string problem_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const RendezvousError& error) {
    return error.what();
  }
  return "no problem";
}

}  // namespace refrain::testing
