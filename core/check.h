// Errors of the engine: typed, thrown before anything is changed, never printed.
// check() guards against the caller's mistake, invariant() against ours.
#pragma once

#include <cstdint>
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>

namespace refrain {

// Base of everything the library throws.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The caller passed something the function does not accept.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

// A file or data set is damaged, truncated, mislabelled or of the wrong kind.
class DataError : public Error {
 public:
  using Error::Error;
};

// Writing, syncing or renaming a file failed.
class StorageError : public Error {
 public:
  using Error::Error;
};

// A memory limit, or the system's memory, does not hold what was asked for.
class OutOfMemory : public Error {
 public:
  using Error::Error;

  // In bytes, where an arena refused; all 0 where something else ran out. `held` is what tensors hold with rounding, `reserved`
  // the arena's length with the holes between them.
  std::int64_t requested = 0, held = 0, reserved = 0, largest_hole = 0, limit = 0;
};

// There is no such device: no driver, no hardware, or a build without its backend.
class DeviceUnavailable : public Error {
 public:
  using Error::Error;
};

// The CUDA runtime, or a library on it, reported an error.
class CudaError : public Error {
 public:
  using Error::Error;
};

// A loss, gradient or parameter became infinite or NaN.
class NonFinite : public Error {
 public:
  using Error::Error;
};

// A checkpoint region's replay did something else than its first run.
class ReplayMismatch : public Error {
 public:
  using Error::Error;
};

// A promise the engine makes to itself does not hold: a defect of Refrain.
class InternalError : public Error {
 public:
  using Error::Error;
};

// All parts written one after the other, as operator<< would.
template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());  // files and messages are the same wherever they are written
  (out << ... << parts);
  return std::move(out).str();
}

template <class E = InvalidArgument, class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw E(concat(parts...));
}

// Throws E with the concatenated parts unless the condition holds.
template <class E = InvalidArgument, class... Parts>
void check(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]] fail<E>(parts...);
}

template <class... Parts>
void invariant(bool condition, const Parts&... parts) {
  if (!condition) [[unlikely]] fail<InternalError>("internal error: ", parts...);
}

}  // namespace refrain
