// Which libraries there are. A file's number is that of the headers compiled against: another one has other structs.
#include <refrain/kernels/common/cuda/library.h>

#include <cublasLt.h>
#if defined(REFRAIN_CUDNN)
#include <cudnn_version.h>
#endif

namespace refrain::cuda {

Library& cublaslt_library() {
  static auto& library = *new Library("libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR));
  return library;
}

Library& cudnn_library() {
#if defined(REFRAIN_CUDNN)
  static auto& library = *new Library("libcudnn.so." + std::to_string(CUDNN_MAJOR));
#else
  static auto& library = *new Library("libcudnn.so", "this build has no cuDNN (it was configured without its headers)");
#endif
  return library;
}

std::vector<LibraryState> library_states() {
  std::vector<LibraryState> states;
  for (const Library* library : {&cublaslt_library(), &cudnn_library()}) states.push_back({library->file(), library->problem()});
  return states;
}

}  // namespace refrain::cuda
