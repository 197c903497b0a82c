// Rows of a table by index.
#pragma once

#include <refrain/nn/module.h>

namespace refrain {

class Embedding : public Module {
 public:
  // PyTorch's default values are standard normal.
  Embedding(std::int64_t num_rows, std::int64_t width, const Init& init = Init::normal(0, 1));
  // i64 indices [...] → [..., width]
  Tensor operator()(const Tensor& indices) const;

  Tensor weight;  // [rows, width]
};

}  // namespace refrain
