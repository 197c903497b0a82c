// y = x·weightᵀ + bias over the last dim.
#pragma once

#include <refrain/nn/module.h>

#include <cmath>
#include <optional>

namespace refrain {

struct LinearOptions {
  bool bias = true;
  Init weight_init = Init::kaiming_uniform(std::sqrt(5.0));  // PyTorch's default: uniform within 1 / sqrt(in)
  std::optional<Init> bias_init = {};                        // none: uniform within 1 / sqrt(in)
};

class Linear : public Module {
 public:
  Linear(std::int64_t num_in, std::int64_t num_out, const LinearOptions& options = {});
  // [..., in] → [..., out]
  Tensor operator()(const Tensor& x) const;

  Tensor weight;  // [out, in]
  Tensor bias;    // [out], undefined without bias
};

}  // namespace refrain
