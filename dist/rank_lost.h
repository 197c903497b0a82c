// What a distributed run ends by.
#pragma once

#include <refrain/core/check.h>

#include <cstdint>
#include <string>

namespace refrain {

// Another rank died, is stuck, cannot be reached or has left. The command ends with exit code 6.
class RankLost : public Error {
 public:
  using Error::Error;

  int rank = -1;          // -1: not known which
  std::string host = {};  // its
  std::int64_t step = -1;      // this rank's, as of set_step(); -1 before the first
  std::string operation = {};  // what this rank was waiting for; empty when it was between operations
};

// The ranks' calls are not the same: another operation, dtype, size, operator or order. Names both calls.
class CallMismatch : public Error {
 public:
  using Error::Error;
};

// The group could not be formed: a missing variable, an unresolvable host, a taken port, a rank that never came.
class RendezvousError : public Error {
 public:
  using Error::Error;
};

}  // namespace refrain
