// A tensor with the name it has in a state dict or a file.
#pragma once

#include <refrain/core/tensor.h>

#include <string>

namespace refrain {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

}  // namespace refrain
