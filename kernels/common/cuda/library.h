// A shared library of NVIDIA's, opened when it is first used: a program starts, and has kernels of its own, where there is none.
// Needs no CUDA header.
#pragma once

#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace refrain::cuda {

// Safe to use from several threads. Never closed: work that is queued may need it to the end.
class Library {
 public:
  // Opens `file`, such as "libcublasLt.so.13", where the system looks for libraries.
  explicit Library(std::string file);
  // One that cannot be used, and why.
  Library(std::string file, std::string problem);

  const std::string& file() const { return file_; }
  // Why it cannot be used: it was not found, or a function was not found in it. Empty when neither.
  std::string problem() const;
  bool is_usable() const { return problem().empty(); }
  // Throws InvalidArgument, with the library and the reason, where it cannot be used. `user` is whoever insists on it.
  void require(std::string_view user) const;

  // The function of this name, such as find<decltype(&cudnnCreate)>("cudnnCreate"). Null, and a problem, where there is none.
  template <class F>
  F find(const char* name) {
    return reinterpret_cast<F>(find_address(name));
  }

 private:
  void* find_address(const char* name);

  std::string file_;
  mutable std::mutex mutex_;
  std::string problem_;  // before the handle: opening writes it
  void* handle_ = nullptr;
};

// The libraries that kernels may use, opened when first asked for. Where one is missing kernels of ours do its work.
Library& cublaslt_library();
Library& cudnn_library();

struct LibraryState {
  std::string file, problem;  // problem: empty where it can be used
};
// All of them, for reports. Empty in a build without CUDA.
std::vector<LibraryState> library_states();

namespace detail {

// The dynamic loader; the emulator has its own, which finds the fakes. Null where there is no such thing; open_library() then
// says why.
void* open_library(const char* file, std::string& problem);
void* find_function(void* library, const char* name);

}  // namespace detail

}  // namespace refrain::cuda
