// Runs the built `refrain` as a person would; for tests/apps, where REFRAIN_COMMAND says where it is.
#pragma once

#include <refrain/core/io/file.h>
#include <refrain/tests/support/scratch_directory.h>

#include <sys/wait.h>

#include <cstdlib>
#include <string>

namespace refrain::testing {

struct Outcome {
  int code;  // exit code; 128 and the signal when one ended it
  std::string out, err;
};

// Runs `refrain ARGUMENTS` in the directory and waits for it; the arguments are a shell's.
inline Outcome refrain_command(const ScratchDirectory& scratch, const std::string& arguments) {
  const std::string line = "cd '" + scratch.path().string() + "' && '" REFRAIN_COMMAND "' " + arguments + " >out 2>err";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_text_file(scratch / "out"),
          read_text_file(scratch / "err")};
}

}  // namespace refrain::testing
