// Two linears with GELU between them. Hendrycks and Gimpel, "Gaussian error linear units", 2016.
#pragma once

#include <refrain/nn/dropout.h>
#include <refrain/nn/linear.h>

#include <refrain/autograd/ops/activation.h>

namespace refrain {

struct MlpOptions {
  GeluForm gelu = GeluForm::erf;
  double dropout = 0;           // after GELU
  std::int64_t chunk_rows = 0;  // the hidden values of so many rows exist at a time, in forward and backward
                                // (autograd/ops/mlp.h); 0: those of all, kept for backward
  LinearOptions fc1 = {}, fc2 = {};
};

class Mlp : public Module {
 public:
  Mlp(std::int64_t width, std::int64_t hidden, const MlpOptions& options = {});
  // [..., width] → [..., width]
  Tensor operator()(const Tensor& x) const;

  std::shared_ptr<Linear> fc1, fc2;  // [width → hidden], [hidden → width]
  std::shared_ptr<Dropout> dropout;

 private:
  GeluForm gelu_;
  std::int64_t chunk_rows_;
};

}  // namespace refrain
