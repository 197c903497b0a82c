// A tensor with the name it has in a state dict or a file, and patterns over such names.
#pragma once

#include <refrain/core/tensor.h>

#include <string>
#include <string_view>

namespace refrain {

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// Whether `text` matches `pattern`, where `*` stands for any characters, dots too, and `?` for one.
bool matches_pattern(std::string_view pattern, std::string_view text);

}  // namespace refrain
