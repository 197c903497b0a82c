// The fakes of NVIDIA's libraries, as the emulator's loader finds them: by the names of their files and functions.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace refrain::emulator {

struct Fake {
  std::string file;
  std::map<std::string_view, void*> functions;
};
const Fake& cublaslt_fake();
const Fake& cudnn_fake();
const Fake& nccl_fake();

template <class R, class... P>
void* address_of(R (*function)(P...)) {
  return reinterpret_cast<void*>(function);
}

}  // namespace refrain::emulator
