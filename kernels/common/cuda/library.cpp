#include <refrain/core/check.h>
#include <refrain/kernels/common/cuda/library.h>

#include <utility>

namespace refrain::cuda {

Library::Library(std::string file) : file_(std::move(file)), handle_(detail::open_library(file_.c_str(), problem_)) {}

Library::Library(std::string file, std::string problem) : file_(std::move(file)), problem_(std::move(problem)) {}

std::string Library::problem() const {
  const std::scoped_lock lock(mutex_);
  return problem_;
}

void Library::require(std::string_view user) const {
  const std::string reason = problem();
  check(reason.empty(), user, ": ", file_, " cannot be used: ", reason);
}

void* Library::find_address(const char* name) {
  if (handle_ == nullptr) return nullptr;
  void* const address = detail::find_function(handle_, name);
  if (address == nullptr) {
    const std::scoped_lock lock(mutex_);
    if (problem_.empty()) problem_ = concat("it has no function ", name);
  }
  return address;
}

}  // namespace refrain::cuda
