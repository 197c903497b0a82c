// Normalising layers. Ba et al., "Layer normalization", 2016; Ioffe and Szegedy, "Batch normalization", 2015.
#pragma once

#include <refrain/nn/module.h>

namespace refrain {

// Over the last dim: (x - mean) / sqrt(variance + eps) · weight + bias, starting at weight 1, bias 0.
class LayerNorm : public Module {
 public:
  explicit LayerNorm(std::int64_t width, double eps = 1e-5);
  // [..., width] → [..., width]
  Tensor operator()(const Tensor& x) const;
  double eps() const { return eps_; }

  Tensor weight, bias;  // [width]

 private:
  double eps_;
};

struct BatchNorm2dOptions {
  double eps = 1e-5;
  double momentum = 0.1;  // weight of the new batch in the running statistics
};

// Over batch, height and width, a channel at a time. In training mode with the batch's statistics, which also move the
// running ones (with the unbiased variance, as PyTorch does) – but not when a checkpoint region replays. In evaluation
// mode with the running statistics. Throws InvalidArgument in training mode for one value per channel.
class BatchNorm2d : public Module {
 public:
  explicit BatchNorm2d(std::int64_t num_channels, const BatchNorm2dOptions& options = {});
  // [B, C, H, W] → [B, C, H, W]
  Tensor operator()(const Tensor& x) const;

  Tensor weight, bias;                // [C]
  Tensor running_mean, running_var;   // [C], buffers

 private:
  BatchNorm2dOptions options_;
};

}  // namespace refrain
