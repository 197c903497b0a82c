// Cuts images into square patches and maps each to a vector: a convolution whose stride is its window.
// Dosovitskiy et al., "An image is worth 16x16 words", 2020.
#pragma once

#include <refrain/nn/module.h>

#include <optional>

namespace refrain {

class PatchEmbedding : public Module {
 public:
  // No init: PyTorch's default of a convolution, uniform within 1 / sqrt(channels · patch²), for weight and bias.
  PatchEmbedding(std::int64_t channels, std::int64_t width, std::int64_t patch, const std::optional<Init>& weight_init = {},
                 const std::optional<Init>& bias_init = {});
  // [B, channels, H, W] → [B, (H / patch)·(W / patch), width], patches row by row. H and W must be multiples of patch.
  Tensor operator()(const Tensor& images) const;

  Tensor weight;  // [width, channels, patch, patch]
  Tensor bias;    // [width]
};

}  // namespace refrain
