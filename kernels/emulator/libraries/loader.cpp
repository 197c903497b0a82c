// The loader that the backend asks for NVIDIA's libraries under the emulator: it has the fakes and nothing else, less those that
// an option hides.
#include <refrain/kernels/common/cuda/library.h>
#include <refrain/kernels/emulator/libraries/fake.h>
#include <refrain/kernels/emulator/options.h>

namespace refrain::cuda::detail {

namespace {

bool is_hidden(std::string_view file) {
  const std::string list = "," + emulator::options().hidden_libraries + ",", stem(file.substr(0, file.find('.')));
  return list.find("," + stem + ",") != std::string::npos;
}

}  // namespace

void* open_library(const char* file, std::string& problem) {
  problem = std::string(file) + (is_hidden(file) ? ": hidden by the emulator's options" : ": the emulator has no such library");
  if (is_hidden(file)) return nullptr;
  const emulator::Fake* const fakes[] = {
      &emulator::cublaslt_fake(),
      &emulator::nccl_fake(),
#if defined(REFRAIN_CUDNN)
      &emulator::cudnn_fake(),
#endif
  };
  for (const emulator::Fake* fake : fakes) {
    if (fake->file != file) continue;
    problem.clear();
    return const_cast<emulator::Fake*>(fake);
  }
  return nullptr;
}

void* find_function(void* library, const char* name) {
  const auto& functions = static_cast<const emulator::Fake*>(library)->functions;
  const auto found = functions.find(name);
  return found != functions.end() ? found->second : nullptr;
}

}  // namespace refrain::cuda::detail
