// Two-dimensional convolution (cross-correlation, as in every deep-learning library).
#pragma once

#include <refrain/nn/module.h>

namespace refrain {

struct Conv2dOptions {
  std::int64_t stride = 1;
  std::int64_t padding = 0;  // zeros on every side
  bool bias = true;
};

class Conv2d : public Module {
 public:
  // PyTorch's default values: uniform within 1 / sqrt(in · kernel²).
  Conv2d(std::int64_t num_in, std::int64_t num_out, std::int64_t kernel, const Conv2dOptions& options = {});
  // [B, in, H, W] → [B, out, (H + 2·padding - kernel) / stride + 1, (W + 2·padding - kernel) / stride + 1]
  Tensor operator()(const Tensor& x) const;

  Tensor weight;  // [out, in, kernel, kernel]
  Tensor bias;    // [out], undefined without bias

 private:
  Conv2dOptions options_;
};

}  // namespace refrain
