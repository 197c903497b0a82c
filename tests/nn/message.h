// What an expected exception says, independent of the test framework's version.
#pragma once

#include <refrain/core/check.h>

#include <string>

namespace refrain {

// The message of the InvalidArgument that f throws; empty when it throws none.
template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "";
}

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace refrain
