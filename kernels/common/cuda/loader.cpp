// The system's dynamic loader.
#include <refrain/kernels/common/cuda/library.h>

#include <dlfcn.h>

namespace refrain::cuda::detail {

void* open_library(const char* file, std::string& problem) {
  // Now: a library whose own needs are not met is missing at once, not in the middle of a step.
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    problem = reason != nullptr ? reason : "the system does not say why";
  }
  return library;
}

void* find_function(void* library, const char* name) { return dlsym(library, name); }

}  // namespace refrain::cuda::detail
